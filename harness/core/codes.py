"""Every code that a reason or a doubt can have, with its subject, its meaning and the advice for it.

A code that is not in `CODES` cannot be used: `Reason` refuses it. `compare`, `peak` and the other
searches take their sets of codes from here, and `scripts/docs.py` writes docs/verdict.md from here.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Self


class Kind(StrEnum):
    """Whether a code makes a run INVALID or only calls for caution."""

    REASON = "reason"
    DOUBT = "doubt"


class About(StrEnum):
    """The part of a run that a code is about, and its explanation."""

    meaning: str

    LOAD = "load", "the rate, the number of queries, or the length of the run"
    LOAD_GENERATOR = (
        "load generator",
        "LoadGen, or the part of the harness that passes its queries on",
    )
    MODEL = "model", "the model file, or the backend that runs it"
    SERVER = (
        "server",
        "the server of `--url` or the nodes, the network to it, and the requests on the way",
    )
    ACCURACY = "accuracy", "the answers, their score, and the data they are scored on"
    MACHINE = "machine", "something that changed the speed of the machine during the run"
    SETTINGS = "machine settings", "how the machine is set up"
    CLOCK = "clock", "the wall clock, which LoadGen measures with"
    POWER = "power", "the power meters"
    RULES = "rules", "the official rules of MLPerf"
    PROCESS = "process", "the start and the end of the process that is measured"
    FILES = "files", "the logs and the other files of the run"

    def __new__(cls, word: str, meaning: str) -> Self:
        about = str.__new__(cls, word)
        about._value_, about.meaning = word, meaning
        return about


class Code(NamedTuple):
    kind: Kind
    about: About
    meaning: str
    """A full sentence, with the limit where there is one."""
    advice: str
    """The next step of the user, as a full sentence."""


_AGAIN = "Run again."
_DISK = "Check that the result folder is writable and the disk is not full, then run again."
_REPORT = "Run again; report a bug if it happens again."
_QUIET = "Stop other programs on this machine and run again."
_MOVED = "Do not move files between result folders; run again."
_LONGER = "Run longer, with `--duration` or `--queries`."

_Rows = Mapping[About, Mapping[str, tuple[str, str]]]

_REASONS: _Rows = {
    About.LOAD: {
        "slo-missed": (
            "The latency, or the time of tokens, at the percentile of an SLO is above its bound.",
            "Lower `--target-qps` or `--concurrency`, or raise `--slo`.",
        ),
        "early-stopping": (
            "Too few queries to prove the percentile, given how many of them were late.",
            "Run longer: the text says how many queries and seconds are needed.",
        ),
        "loadgen-invalid": (
            "LoadGen's own verdict is INVALID; the text names the constraints that were not met.",
            "Lower the rate or run longer, as the text says.",
        ),
        "hopeless": (
            "A search ended the run early because too many queries were late already.",
            "Do nothing: this run was one step of a search.",
        ),
    },
    About.LOAD_GENERATOR: {
        "too-few-queries": ("LoadGen counted fewer queries than were planned.", _REPORT),
        "wrong-settings": (
            "LoadGen's log states another setting than the plan: the bound, the rate, a count, or how samples are drawn.",
            "Find the plug-in or the file that changes LoadGen's settings.",
        ),
        "numbers-disagree": (
            "A number in LoadGen's log contradicts another one there, or the journal of the harness.",
            "Find the plug-in that changes LoadGen's files or its clock; report a bug if there is none.",
        ),
        "journal-impossible": (
            "The journal has rows that no run can leave: an answer before its model ended, or too large a batch.",
            "Find the plug-in that answers in place of the harness; report a bug if there is none.",
        ),
        "loadgen-errors": (
            "LoadGen wrote errors into its detail log.",
            "Read `mlperf_log_detail.txt`.",
        ),
        "client-bound": (
            "The client, not the server, limited the run: it stood still, read replies late, had no time left, or reached its ceiling.",
            "Lower the rate, give the client a separate machine or more hosts (`--load-hosts`), or send larger requests (`--max-batch`).",
        ),
        "samples-lost": (
            "Some sample was not answered exactly once, or LoadGen's count is not the harness's.",
            "Report a bug, with the result folder.",
        ),
    },
    About.MODEL: {
        "batch-failed": (
            "The dataset or the backend raised an exception, or the backend returned a wrong shape, a wrong type, NaN or +Inf.",
            "Correct the model or the plug-in: `run.json` has the first traceback.",
        ),
        "answers-by-index": (
            "Given the inputs of other samples, the backend or the hook answered as for the dataset indices in the harness's memory.",
            "Use a backend, and a hook, that compute what they get.",
        ),
        "cache-differs": (
            "The cache of `--models` counted other hits or loads than the journal has, or a simulation does.",
            _REPORT,
        ),
    },
    About.SERVER: {
        "requests-failed": (
            "Requests were refused, reset, not answered in time, or answered with something that is not an answer.",
            "Read the server's log; the text counts the failed samples by kind.",
        ),
        "server-gone": (
            "A server refused every new connection for 5 s: the rest of the samples failed, or went to the other servers.",
            "Find out why the server ended, and run again.",
        ),
        "slo-not-measured": (
            "An SLO of times that the answers do not have: they are of one token, or the tokens of a chunk are unknown.",
            "Drop the SLO, or use a server that reports `usage` or token ids with each chunk, and longer answers.",
        ),
        "one-token-answers": (
            "An SLO of the tokens' times, and answers of a single token, which LoadGen does not take.",
            "Drop the SLO, or have answers be longer, e.g. with `--backend-option ignore_eos=on`.",
        ),
        "node-lost": (
            "A node closed a connection or left a batch unanswered for too long; what it held has failed.",
            "Find what ended or stopped the node, and run again.",
        ),
        "tokens-contradicted": (
            "The server's token counts differ from its token ids, fell within a stream, exceed `max_tokens`, or cannot fit the text.",
            "Read the text; correct what counts the tokens, or do without counts where it drops token ids.",
        ),
        "prompts-cached": (
            "In an official run the server had computed parts of the prompts before: the rules prohibit such a cache.",
            "Turn the server's prefix cache off.",
        ),
        "resent-often": (
            "More than 3 requests and 0.1 % of all had to be sent twice: the server closes connections that are in use.",
            "Raise the server's keep-alive time or its limit of requests a connection, or have it send `Connection: close`; `--no-resend` counts such requests as failed.",
        ),
    },
    About.ACCURACY: {
        "accuracy-below-target": (
            "The score does not reach the target in the manifest.",
            "Check the order of the classes (`data check`) and the input's steps (`pitfalls`), or use another precision or model file.",
        ),
        "accuracy-incomplete": (
            "LoadGen's accuracy log does not hold one answer for each sample.",
            _DISK,
        ),
        "accuracy-failed": (
            "The dataset or the metric raised an exception, the data changed, or the run did not start.",
            "Read the text and `accuracy.log`.",
        ),
        "answers-differ": (
            "Answers of the performance run differ from the accuracy run's for the same samples.",
            "Find what differs under load or in larger batches, or raise `accuracy.tolerance` or `sampling_tolerance`.",
        ),
    },
    About.CLOCK: {
        "clock-differs": (
            "The clock of the measured process runs at another rate than the supervisor's.",
            "Remove what changes the clock of the process, such as a preloaded library, and run again.",
        ),
        "clock-jumped": (
            "The wall clock was set forward or back by more than 1 ms: LoadGen's latencies are wrong.",
            _AGAIN,
        ),
    },
    About.RULES: {
        "too-short": (
            "The minimum duration of an official run is shorter than the rules require.",
            "Correct `min_duration` in the file of `--user-conf`.",
        )
    },
    About.PROCESS: {
        "did-not-start": (
            "A plug-in raised an exception before the first query.",
            "Read the text and `performance.log`.",
        ),
        "died": (
            "The measured process was killed or ended before the run was over.",
            "Read `performance.log`; often there was not enough memory.",
        ),
        "hung": (
            "No sample was completed for as long as `--hang-timeout` allows.",
            "The text says what the process waited for.",
        ),
        "load-host-lost": (
            "One of the hosts of `--load-hosts` died, hung, or could not be reached any more, and the run was ended.",
            "Read the text and the host's log, and run again; what was measured until then is not a whole run.",
        ),
        "interrupted": ("A signal stopped the run, for example Ctrl-C.", _AGAIN),
        "did-not-finish": ("The harness ended before it wrote a result.", _AGAIN),
    },
    About.FILES: {
        "log-changed": (
            "A file of LoadGen changed after LoadGen had returned.",
            "Find the plug-in that changes LoadGen's files; do not edit a run's files.",
        ),
        "log-missing": ("LoadGen's detail log is missing.", _DISK),
        "log-incomplete": ("LoadGen's detail log is cut off, or LoadGen did not write it.", _DISK),
        "log-mixed": ("LoadGen's detail log holds more than one run.", "Run into a new folder."),
        "wrong-run": ("The log belongs to another scenario or mode than the run.", _MOVED),
        "wrong-seed": ("A random seed in the log differs from the plan.", _MOVED),
        "wrong-sample-count": (
            "The number of samples held in memory differs from the plan.",
            _MOVED,
        ),
        "journal-missing": ("The harness's own record of the samples is missing.", _DISK),
        "not-saved": (
            "The result folder could not be written, so the printed table is all there is.",
            "Free disk space or pass another `--out`, then run again.",
        ),
    },
}
_DOUBTS: _Rows = {
    About.LOAD: {
        "few-samples": (
            "There were fewer queries than the percentile needs even if none of them is late.",
            _LONGER,
        ),
        "few-held": (
            "Fewer than 64 samples were held in memory although the dataset has more, and they are small.",
            "Hold more with `--performance-count`.",
        ),
        "short-run": (
            "An Offline run took less than 1 s, so its rate is mostly start and end.",
            _LONGER,
        ),
    },
    About.LOAD_GENERATOR: {
        "generator-late": (
            "LoadGen issued 1 % of the queries late by more than 10 % of the SLO: that latency is its own.",
            "Leave LoadGen a core with fewer `--instances` or `--threads`; stop other programs.",
        ),
        "client-busy": (
            "The client read replies late, was busy for 70 % of a second, or is asked for half of its ceiling or more.",
            "Give the client a separate machine, or lower the rate.",
        ),
        "percentiles-disagree": (
            "The harness's own p50 or p99 differs from LoadGen's by more than 1 % and more than 20 us.",
            _QUIET,
        ),
        "harness-changed": (
            "The files of the harness match neither an installed release nor a commit.",
            "Commit the changes, or install a release; `code` in `environment.json` names the files.",
        ),
        "loadgen-warnings": (
            "LoadGen wrote a warning that is not known to be harmless.",
            "Read `mlperf_log_detail.txt`.",
        ),
    },
    About.MODEL: {
        "model-not-pinned": (
            "The manifest names no SHA-256 for the model file, so nothing proves which file ran.",
            "Compare the recorded SHA-256 with the publisher's and write it into the manifest.",
        ),
        "cached": (
            "After the run, slightly changed inputs took more than 1.5 times as long as repeated ones, or raised.",
            "Read the backend's code: it may keep answers. A model whose work depends on the values does the same.",
        ),
        "padded": (
            "The model file has a fixed batch size; more than 10 % of the computed rows were padding.",
            "Export the model with a symbolic batch dimension.",
        ),
        "idle": (
            "The backend's threads computed, or waited for a core, for less than a quarter of its batches' time.",
            "Find what it waits for; where it computes on another device, `describe()` names the `device`.",
        ),
        "leak": (
            "The memory of the measured process grew to the end: in the second half by more than 5 % and 16 MB.",
            "Find what the backend keeps of each batch, reference cycles included.",
        ),
        "close-raised": (
            "The backend raised an exception after the last answer.",
            "Correct the plug-in's `__exit__`.",
        ),
    },
    About.SERVER: {
        "few-connections": (
            "More than 0.1 % of a Server run's requests waited for a free connection.",
            "Raise `--connections`, or lower the rate: the server may be the limit.",
        ),
        "prefix-cache": (
            "The server had computed parts of the prompts before: repeated prompts are answered faster than new ones.",
            "Turn the server's prefix cache off (vLLM: `--no-enable-prefix-caching`), or quote the run as one with it.",
        ),
        "prompt-changed": (
            "The server counts other tokens of prompts than the ids that it was sent, more than they can have, or other ones for the same prompt.",
            "Find what it adds or cuts off: a token at the beginning, a template, or a limit of its context.",
        ),
        "load-host-faster": (
            "A load host on another machine reports shorter times than the server needed for others at the same time.",
            "Find out what runs on that host; run the command near the hosts, with the same way to the server.",
        ),
        "load-host-unwitnessed": (
            "The coordinator's own queries ended before the run, so that little or nothing contradicts what load hosts report.",
            "Read the text and the log of `coordinator`, and run again.",
        ),
        "tokens-doubtful": (
            "The server counts tokens that answers do not show, such as hidden reasoning, or a total that is not the sum.",
            "Ask for answers that show all their tokens, or quote the rate with this doubt.",
        ),
        "tokens-at-once": (
            "More than half of the streams of several tokens came in one chunk, so that TTFT and TPOT are not times of tokens.",
            "Find what gathers the stream: the server, or a proxy before it that buffers.",
        ),
        "ends-unexplained": (
            "The server gives no `finish_reason`, so that nobody can see whether its answers are whole.",
            "Use a server that says why an answer ended, or check the answers by `--mode accuracy`.",
        ),
        "node-slower": (
            "A node needs more than 1.2 times as long for a batch as the median of the nodes.",
            "Look what else runs there, and at its cores and settings; or leave it out.",
        ),
        "node-clock": (
            "The clock of a node ran more than 100 ppm too fast or too slow, or was set, during the run.",
            "Wait until it is synchronised, and run again.",
        ),
        "node-journal": (
            "A node did not give back its journal, so that stages on the nodes are not known.",
            "Read the text, and run again.",
        ),
        "ray-calls": (
            "The batches travelled in calls of Ray, which take milliseconds; the text says how many here.",
            "Open the ports of the nodes to this machine, and run without `--transport actor`.",
        ),
        "json-tensors": (
            "Tensors go to the server and back as JSON text, which costs both sides time; the text says how much here.",
            "Use a server that takes binary tensors, or `--backend-option encoding=binary` where it does.",
        ),
        "server-away": (
            "A server took no connection for more than 0.25 s in the run, and took one again after it.",
            "Read the server's log for what ended or blocked it, and run again.",
        ),
        "server-times": (
            "The times that the server reports cannot be right: less than 1 us, or a part longer than the whole.",
            "Leave out `client.server_times`, or correct the server's header `Server-Timing` or its statistics; durations there are in ms.",
        ),
        "resent": (
            "A request was sent twice, because the server closed its connection at that moment.",
            "Raise the server's keep-alive time or its limit of requests a connection, or have it send `Connection: close`.",
        ),
        "loopback": (
            "The server runs on this machine: it shares cores with the client, and no network was crossed.",
            "Run the client on another machine to measure what users of the server get.",
        ),
    },
    About.ACCURACY: {
        "few-compared": (
            "Fewer than 100 answers of the performance run could be compared with the accuracy run's.",
            "Run longer; where answers are large, add a postprocess step that makes them smaller.",
        ),
        "too-good": (
            "The score is better than the manifest's `accuracy.reference` by more than noise.",
            "Find where the answers come from; correct the manifest where the model is another one.",
        ),
        "judge-changed": (
            "The manifest has the name or the file of a shipped model, and judges its answers by other values.",
            "Use the shipped manifest, or say beside the score what differs.",
        ),
        "judge-weak": (
            "The manifest's target or tolerances are so wide that wrong answers pass.",
            "Set `accuracy.target`, `tolerance` and `sampling_tolerance` to what the model's publisher states.",
        ),
        "target-not-checked": (
            "The manifest has an accuracy target, and the run was not compared with it.",
            "Run with the manifest's own dataset and metric.",
        ),
    },
    About.MACHINE: {
        "noisy-machine": (
            "Before the run, timed sleeps woke up late (p99) by more than 10 % of the SLO.",
            _QUIET,
        ),
        "busy-machine": (
            "Other processes used more than 10 % of all cores during the run.",
            _QUIET,
        ),
        "steal": (
            "Other virtual machines on this host used more than 2 % of the CPU time.",
            "Use a machine with dedicated cores, or run again at another time.",
        ),
        "throttled": (
            "The CPU quota of the container stopped the run for some time.",
            "Raise the quota, or use fewer `--instances` or `--threads`.",
        ),
        "gpu-throttled": (
            "A GPU lowered its clock to protect itself from heat or from too much power.",
            "Cool it, or quote only runs long enough to be slowed throughout.",
        ),
        "gpu-clocks": (
            "A GPU's clock changed by more than 10 % in the run.",
            "Let it settle with a longer run; `nvidia-smi -q -d CLOCK,POWER` shows its limits.",
        ),
        "gpu-shared": (
            "Other processes computed on a GPU of the run.",
            "Stop them: `nvidia-smi` names them.",
        ),
        "gpu-errors": (
            "ECC found memory errors that it could not correct on a GPU of the run.",
            "Run again; where it repeats, have the GPU tested.",
        ),
        "preempted": (
            "The measured threads lost their cores at least 200 times a CPU second, and at least 100 times.",
            "Stop other programs, or do what the doubt says.",
        ),
        "paged": (
            "The measured process read memory or files from the disk more often than once in 100 samples.",
            "Free memory, or hold fewer samples with `--performance-count`.",
        ),
        "cores-lost": (
            "During the run the measured threads lost cores that they could run on.",
            "Find the program that moved them (`taskset`, a cpuset, a container's manager), and run again.",
        ),
        "priority-lowered": (
            "During the run the measured threads lost a part of their priority.",
            "Find the program that changed it (`renice`, a daemon), and run again.",
        ),
        "stalled": (
            "Samples waited, but none was completed for more than 1 s and 20 times the slowest batch, or a client stood still for more than 1 s, or a signal stopped the process.",
            "Look for what stopped the process, and run again.",
        ),
        "drift": (
            "The medians of the first and last third differ by more than 10 % and by more than their noise.",
            "Run longer, or let the machine settle first.",
        ),
        "frequency-dropped": (
            "The fastest core became more than 10 % slower from the first third to the last (runs of at least 9 s).",
            "Let the machine settle with a longer run, or fix the frequency of its cores.",
        ),
        "thermal-throttled": (
            "The processor slowed itself down because it was too hot.",
            "Cool the machine, or quote only runs that are hot from beginning to end.",
        ),
        "settings-changed": (
            "The frequency governor, turbo, SMT, the cores online or the container's CPU quota changed during the run.",
            "Find the program that changed it, such as a power daemon, and run again.",
        ),
    },
    About.SETTINGS: {
        "governor": (
            "A frequency governor may slow waiting cores down (not checked in Offline).",
            "Run `cpupower frequency-set -g performance`.",
        ),
        "not-pinned": (
            "`--pin` is set, and a thread that computes may run outside its instance's cores.",
            "Add `--backend-option processes=on`.",
        ),
    },
    About.CLOCK: {
        "clock-slewed": (
            "Time synchronisation made the wall clock run more than 100 ppm too fast or too slow.",
            "Wait until the clock is synchronised, and run again.",
        )
    },
    About.PROCESS: {
        "startup-code": (
            "Code that no installed package owns runs whenever Python starts: a hook, a `.pth` file, a preloaded library.",
            "Read it, and run without it: unset `PYTHONPATH`, `PYTHONWARNINGS` and `LD_*`, or remove the file.",
        )
    },
    About.POWER: {
        "power-missing": (
            "`--meter` is set, and no meter has readings for the whole run.",
            "Read the text; [power.md](power.md) explains each meter.",
        ),
        "power-implausible": (
            "A source read more than 200 kW on average, or one of a whole computer less than 0.3 W.",
            "Check the unit that the meter prints, and what it is connected to.",
        ),
    },
}

CODES: Mapping[str, Code] = MappingProxyType(
    {
        code: Code(kind, about, meaning, advice)
        for kind, subjects in ((Kind.REASON, _REASONS), (Kind.DOUBT, _DOUBTS))
        for about, rows in subjects.items()
        for code, (meaning, advice) in rows.items()
    }
)
"""Code -> its row. The order within a kind is the order of the documentation."""

INTERRUPTED = "interrupted"
HOPELESS = "hopeless"


def codes(kind: Kind, about: About) -> frozenset[str]:
    """All codes of that kind about that part of a run."""
    return frozenset(code for code, row in CODES.items() if (row.kind, row.about) == (kind, about))


MACHINE_DOUBTS = codes(Kind.DOUBT, About.MACHINE)
"""Something on the machine disturbed the run."""


class _Reason(NamedTuple):
    code: str
    text: str


class Reason(_Reason):
    """Why a run is INVALID or doubtful: a code of CODES for programs, and a text with numbers for people."""

    __slots__ = ()

    def __new__(cls, code: str, text: str) -> Self:
        if code not in CODES:
            raise ValueError(
                f"{code!r} is not a code of harness/core/codes.py: add it to the table"
            )
        return super().__new__(cls, code, text)

    @classmethod
    def stored(cls, content: Mapping[str, str]) -> Self:
        """A reason from a result file. Another version may have written it: its code may be unknown here."""
        return cls._make((content["code"], content["text"]))
