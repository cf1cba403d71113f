"""Lists every code that a reason or a doubt can have, and each code's subject, meaning and advice.

`Reason` refuses any code that is not in `CODES`. `compare`, `peak` and the other searches get their sets of codes from
this module, and `scripts/docs.py` generates docs/verdict.md from this module.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Self


class Kind(StrEnum):
    """Whether a code makes a run INVALID or only calls for caution."""

    REASON = "reason"
    DOUBT = "doubt"


class About(StrEnum):
    """The part of a run that a code refers to, and an explanation of this part."""

    meaning: str

    LOAD = "load", "the rate, the number of queries, or the length of the run"
    LOAD_GENERATOR = (
        "load generator",
        "LoadGen, or the part of the harness that passes its queries on",
    )
    MODEL = "model", "the model file, or the backend that runs it"
    SERVER = (
        "server",
        "the server of `--url` or the nodes, the network to them, and the requests in transit",
    )
    ACCURACY = "accuracy", "the answers, their score, and the data they are scored on"
    MACHINE = "machine", "something that changed the speed of the machine during the run"
    SETTINGS = "machine settings", "how the machine is set up"
    CLOCK = "clock", "the wall clock, which LoadGen uses to measure time"
    POWER = "power", "the power meters"
    RULES = "rules", "the official rules of MLPerf"
    PROCESS = "process", "the start and the end of the measured process"
    FILES = "files", "the logs and the other files of the run"

    def __new__(cls, word: str, meaning: str) -> Self:
        about = str.__new__(cls, word)
        about._value_, about.meaning = word, meaning
        return about


class Code(NamedTuple):
    kind: Kind
    about: About
    meaning: str
    """A full sentence, which states the threshold if the code has one."""
    advice: str
    """The user's next step, as a full sentence."""


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
            "The latency, or a token time, exceeds the bound of an SLO at the SLO's percentile.",
            "Lower the load, or raise `--slo`; the verb [`peak`](peak.md) finds the highest load within the SLO.",
        ),
        "early-stopping": (
            "There were too few queries to prove the percentile, given how many of them were late.",
            "Run longer: the text states how many queries and seconds are needed. If these are too many, lower the load.",
        ),
        "loadgen-invalid": (
            "LoadGen's own verdict is INVALID; the text names the constraints that were not met.",
            "Lower the rate or run longer, as the text states.",
        ),
        "hopeless": (
            "A search ended the run early because too many queries were late already.",
            "Do nothing: this run was one step of a search.",
        ),
    },
    About.LOAD_GENERATOR: {
        "all-cancelled": (
            "`--cancel` closed every request before its answer, so there is nothing to measure.",
            "Lower the share of `--cancel`, or raise its time.",
        ),
        "too-few-queries": ("LoadGen counted fewer queries than were planned.", _REPORT),
        "wrong-settings": (
            "A setting in LoadGen's log differs from the plan: the bound, the rate, a count, or how samples are drawn.",
            "Find the plug-in or the file that changes LoadGen's settings.",
        ),
        "numbers-disagree": (
            "Two numbers that must be equal differ, either within LoadGen's log or between the log and the harness's journal.",
            "Find the plug-in that changes LoadGen's files or its clock; report a bug if there is none.",
        ),
        "journal-impossible": (
            "The journal has a row that no run can produce, such as an answer before the end of its batch, or a batch that is too large.",
            "Find the plug-in that answers in place of the harness; report a bug if there is none.",
        ),
        "loadgen-errors": (
            "LoadGen wrote errors to its detail log.",
            "Read `mlperf_log_detail.txt`.",
        ),
        "client-bound": (
            "The client, not the server, limited the run: it stalled, read replies late, had no time left, or reached its ceiling.",
            "Lower the load, give the client a separate machine or more hosts (`--load-hosts`), or, if the backend sends batches, raise `--max-batch`.",
        ),
        "samples-lost": (
            "A sample was not answered exactly once, or LoadGen's count differs from the harness's.",
            "Report a bug, and attach the result folder.",
        ),
    },
    About.MODEL: {
        "batch-failed": (
            "The dataset or the backend raised an exception, or the backend returned a wrong shape, a wrong type, NaN or +Inf.",
            "Correct the model or the plug-in; `run.json` has the first traceback.",
        ),
        "answers-by-index": (
            "The backend or the hook got the inputs of other samples, but answered according to dataset indices that it read from the harness's memory.",
            "Use a backend and a hook that compute their answers from their inputs.",
        ),
        "cache-differs": (
            "The hits or loads counted by the cache of `--models` differ from the journal or from a simulation.",
            _REPORT,
        ),
    },
    About.SERVER: {
        "requests-failed": (
            "Requests were refused, reset, not answered in time, or answered with an unusable reply.",
            "Read the server's log; the text counts the failed samples by kind.",
        ),
        "server-gone": (
            "A server refused every new connection for 5 s, or answered nothing for three request timeouts: the rest of the samples failed, or went to the other servers.",
            "Find out why the server stopped, and run again.",
        ),
        "slo-not-measured": (
            "An SLO bounds a time that the answers do not have: they have one token, or the number of tokens per chunk is unknown.",
            "Drop the SLO, or use longer answers and a server that reports `usage` or token ids with each chunk.",
        ),
        "one-token-answers": (
            "An SLO bounds token times, and some answers have a single token. LoadGen does not accept them.",
            "Drop the SLO, or make the answers longer, e.g. with `--backend-option ignore_eos=on`.",
        ),
        "node-lost": (
            "A node closed a connection or left a batch unanswered for too long, so the batches on this node failed.",
            "Find out what stopped the node, and run again.",
        ),
        "tokens-contradicted": (
            "The server's token counts differ from its token ids, decrease within a stream, exceed `max_tokens`, or cannot fit the text.",
            "Read the text. Correct the program that counts the tokens; if it drops token ids, do not use its counts.",
        ),
        "prompts-cached": (
            "The server reused parts of prompts that it had computed before, which the rules of an official run prohibit.",
            "Turn the server's prefix cache off.",
        ),
        "resent-often": (
            "More than 3 requests, and more than 0.1 % of all requests, were sent twice: the server closes connections that are in use.",
            "Raise the server's keep-alive time or its limit of requests per connection, or make it send `Connection: close`. `--no-resend` counts such requests as failed.",
        ),
    },
    About.ACCURACY: {
        "accuracy-below-target": (
            "The score does not reach the target in the manifest.",
            "Check the order of the classes (`data check`) and the preparation of the input (`pitfalls`), or use another precision or model file. For a language model, check `reference` and the prompts, and the model that the server serves.",
        ),
        "accuracy-incomplete": (
            "LoadGen's accuracy log does not have one answer for each sample.",
            _DISK,
        ),
        "accuracy-failed": (
            "The dataset or the metric raised an exception, the data changed, or the run did not start.",
            "Read the text, which contains the exception, and correct what it names: your dataset, your metric, or MLCommons' scoring program. After a scoring program, `score RUN` or `submit run` scores the same answers again.",
        ),
        "answers-unusable": (
            "The metric cannot score an answer, e.g. because it is not an image of the right size.",
            "Correct the model, the server or the postprocessing, and run again.",
        ),
        "answers-differ": (
            "Answers of the performance run differ from the accuracy run's answers to the same samples.",
            "Find out what differs under load or in larger batches, or raise `accuracy.tolerance` or `sampling_tolerance`.",
        ),
    },
    About.CLOCK: {
        "clock-differs": (
            "The clock of the measured process runs at a different rate than the supervisor's clock.",
            "Remove whatever changes the process's clock, e.g. a preloaded library, and run again.",
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
            "The measured process was killed, or exited before the end of the run.",
            "Read `performance.log`; often there was not enough memory.",
        ),
        "hung": (
            "No sample was completed for as long as `--hang-timeout` allows.",
            "The text states what the process waited for.",
        ),
        "load-host-lost": (
            "A host of `--load-hosts` died, hung, or became unreachable, so the harness ended the run.",
            "Read the text and the host's log, and run again; the measurements so far are not a complete run.",
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
        "log-mixed": (
            "LoadGen's detail log contains more than one run.",
            "Run again with a new folder.",
        ),
        "wrong-run": ("The log belongs to a different scenario or mode than the run.", _MOVED),
        "wrong-seed": ("A random seed in the log differs from the plan.", _MOVED),
        "wrong-sample-count": (
            "The number of samples held in memory differs from the plan.",
            _MOVED,
        ),
        "journal-missing": ("The journal, the harness's record of the samples, is missing.", _DISK),
        "not-saved": (
            "The result folder could not be written, so the printed table is all there is.",
            "Free disk space or pass a different `--out`, then run again.",
        ),
    },
}
_DOUBTS: _Rows = {
    About.LOAD: {
        "few-samples": (
            "There were fewer queries than the percentile needs, even if none of them had been late.",
            _LONGER,
        ),
        "few-held": (
            "The run held fewer than 64 samples in memory, although the dataset has more and they are small.",
            "Hold more with `--performance-count`.",
        ),
        "short-run": (
            "An Offline run took less than 1 s, so its start and end dominate the rate.",
            _LONGER,
        ),
    },
    About.LOAD_GENERATOR: {
        "generator-late": (
            "LoadGen issued 1 % of the queries with a delay of more than 10 % of the SLO; this delay is part of their latency.",
            "Leave a core free for LoadGen by lowering `--instances` or `--threads`; stop other programs.",
        ),
        "client-busy": (
            "The client read replies late, was busy for 70 % of a second, or ran at half of its ceiling or more.",
            "Give the client a separate machine, or lower the load.",
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
            "The manifest has no SHA-256 of the model file, so nothing proves which file ran.",
            "Compare the recorded SHA-256 with the publisher's, and write it into the manifest.",
        ),
        "cached": (
            "After the run, slightly changed inputs took more than 1.5 times as long as repeated inputs, or raised an exception.",
            "Read the backend's code: it may keep answers. A model whose work depends on its inputs shows the same effect.",
        ),
        "padded": (
            "The model file has a fixed batch size; more than 10 % of the computed rows were padding.",
            "Export the model with a symbolic batch dimension.",
        ),
        "idle": (
            "The backend's threads spent less than a quarter of the batches' time computing or waiting for a core.",
            "Find out what the threads wait for. If the backend computes on another device, let `describe()` return that `device`.",
        ),
        "leak": (
            "The memory of the measured process grew until the end of the run, by more than 5 % and 16 MB in the second half.",
            "Find out which data the backend keeps from each batch, including reference cycles.",
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
            "The server reports, or requests after the run show, that it answers repeated prompts faster than new ones.",
            "Turn the server's prefix cache off (vLLM: `--no-enable-prefix-caching`), or quote the run as a run with a prefix cache.",
        ),
        "prompt-changed": (
            "The server's token count for a prompt differs from the number of ids sent, is impossible for the prompt's bytes, or varies for the same prompt.",
            "Find out what the server adds or cuts off: a token at the beginning, a template, or a context limit.",
        ),
        "load-host-faster": (
            "A load host on another machine reports shorter times than the server needed for other hosts at the same time.",
            "Find out what runs on that host; start the run on a machine near the hosts, on the same network path to the server.",
        ),
        "load-host-unwitnessed": (
            "The coordinator's own queries ended before the run, so most or all of the load hosts' reports could not be checked.",
            "Read the text and the log of `coordinator`, and run again.",
        ),
        "answers-cut": (
            "More than 5 % of the answers ended at the default of `max_tokens`, so rates and costs describe shorter answers than your users get.",
            "Set `--backend-option max_tokens=N` as your users do.",
        ),
        "tokens-doubtful": (
            "The server's counts do not match its answers: hidden reasoning, chunks without text, more chunks than tokens, filler, or a wrong sum.",
            "Ask for answers that show all their tokens, or quote the rate with this doubt.",
        ),
        "first-token-early": (
            "In half of the streams, the second token took more than twice as long as the first token, and four times as long as later tokens.",
            "Read the first tokens: a server can send one before it has computed the prompt. Quote the latency instead of TTFT.",
        ),
        "answers-vary": (
            "More than 10 % of repeated prompts got an answer that begins differently, although the requests ask for no random sampling.",
            "Find out whether the server ignores `temperature` or `seed`, or mixes up its answers.",
        ),
        "answers-alike": (
            "More than half of the long answers are equal to the answer to a different prompt.",
            "Read the answers; score them with `--mode accuracy`.",
        ),
        "ids-repeated": (
            "More than 10 % of the replies have the id of an earlier reply: a cache in front of the model sends such copies.",
            "Turn off the cache of replies in the server or the gateway, or quote the run as a run with this cache.",
        ),
        "fields-ignored": (
            "More than 10 % of the prompts that require a tool call or a number of tokens got answers without it.",
            "Use a server that supports these fields, or do not send them.",
        ),
        "reasoning-cut": (
            "More than 5 % of the answers consist of reasoning alone, although the server reports that the model ended them.",
            "Find out what cuts the answers off; score them with `--mode accuracy`.",
        ),
        "other-model": (
            "The replies name a model that no request asked for.",
            "Check what the server or the router serves, or give the model's name on the server with `--backend-option served=NAME`.",
        ),
        "tokens-at-once": (
            "More than half of the streams with several tokens came in one chunk, so TTFT and TPOT are not token times.",
            "Find out what buffers the stream: the server, or a proxy in front of it.",
        ),
        "ends-unexplained": (
            "The server does not send a `finish_reason`, so nothing shows whether its answers are complete.",
            "Use a server that reports why an answer ended, or check the answers with `--mode accuracy`.",
        ),
        "node-slower": (
            "A node needs more than 1.2 times as long for a batch as the median of the nodes.",
            "Check the node's other programs, its cores and its settings, or run without the node.",
        ),
        "node-clock": (
            "The clock of a node ran more than 100 ppm too fast or too slow, or was set, during the run.",
            "Wait until the clock is synchronised, and run again.",
        ),
        "node-journal": (
            "A node did not return its journal, so the stages on the nodes are unknown.",
            "Read the text, and run again.",
        ),
        "ray-calls": (
            "The batches were sent in Ray calls, which take milliseconds; the text states the time per call.",
            "Open the nodes' ports to this machine, and run without `--transport actor`.",
        ),
        "json-tensors": (
            "Tensors go to the server and back as JSON text, which costs both sides time; the text states how much.",
            "Use a server that accepts binary tensors, or `--backend-option encoding=binary` if it does.",
        ),
        "server-away": (
            "A server accepted no connection for more than 0.25 s during the run, and then accepted connections again.",
            "Find out from the server's log what stopped or blocked the server, and run again.",
        ),
        "server-times": (
            "The times that the server reports cannot be right: less than 1 us, or a part longer than the whole.",
            "Do not use `client.server_times`, or correct the server's `Server-Timing` header, whose durations are in ms, or its statistics.",
        ),
        "resent": (
            "A request was sent twice, because the server closed its connection at that moment.",
            "Raise the server's keep-alive time or its limit of requests per connection, or make it send `Connection: close`.",
        ),
        "loopback": (
            "The server runs on this machine: it shares cores with the client, and requests do not cross a network. Its CPU time counts as time of other processes, so `busy-machine` is not judged.",
            "Run the client on another machine to measure what the server's users experience.",
        ),
    },
    About.ACCURACY: {
        "answers-drawn": (
            "The server draws tokens at random, so the answers of the performance run are not checked.",
            "Add `seed` to the requests' fields, or drop `temperature`.",
        ),
        "few-compared": (
            "Fewer than 100 answers of the performance run could be compared with the accuracy run's answers.",
            "Run longer; if answers are large, add a postprocess step that makes them smaller.",
        ),
        "too-good": (
            "The score is better than the manifest's `accuracy.reference` by more than noise.",
            "Find out where the answers come from; correct the manifest if it describes a different model.",
        ),
        "judge-changed": (
            "The manifest has the name or the file of a shipped model, but judges its answers by different values.",
            "Use the shipped manifest, or state with the score what differs.",
        ),
        "judge-weak": (
            "The manifest's target or tolerances are so wide that wrong answers pass.",
            "Set `accuracy.target`, `tolerance` and `sampling_tolerance` to the values of the model's publisher.",
        ),
        "target-not-checked": (
            "The manifest has an accuracy target, but the run was not compared with it.",
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
            "Improve cooling, or report only runs that start after throttling has become steady.",
        ),
        "gpu-clocks": (
            "A GPU's clock changed by more than 10 % during the run.",
            "Let the clock settle with a longer run; `nvidia-smi -q -d CLOCK,POWER` shows its limits.",
        ),
        "gpu-shared": (
            "Other processes computed on a GPU of the run.",
            "Stop these processes: `nvidia-smi` lists them.",
        ),
        "gpu-divided": (
            "A GPU of the run is divided into instances (MIG), which share its clock and its power.",
            "Stop the work in the other instances, or turn MIG off (`nvidia-smi -mig 0`); do not quote the energy.",
        ),
        "gpu-errors": (
            "ECC found memory errors on a GPU of the run that it could not correct.",
            "Run again; if it repeats, have the GPU tested.",
        ),
        "preempted": (
            "Other programs took the cores from the measured threads at least 200 times per CPU second, and at least 100 times in total.",
            "Stop other programs, or follow the doubt's text.",
        ),
        "paged": (
            "The measured process read memory or files from the disk more often than once in 100 samples.",
            "Free memory, or hold fewer samples with `--performance-count`.",
        ),
        "cores-lost": (
            "During the run, the set of cores on which the measured threads may run became smaller.",
            "Find the program that restricted the threads (`taskset`, a cpuset, a container's manager), and run again.",
        ),
        "priority-lowered": (
            "During the run the priority of the measured threads was lowered.",
            "Find the program that changed it (`renice`, a daemon), and run again.",
        ),
        "stalled": (
            "Samples waited, but none was completed for more than 1 s and 20 times the slowest batch; or a client stood still for more than 1 s; or a signal stopped the process.",
            "Find out what stopped the process, and run again.",
        ),
        "drift": (
            "The speed of the run changed by 10 % or more (below 5 s: in a ramp, or by a factor of 2 for 0.5 s), and its last quarter differs from the mean by 5 % or more ([steady.md](steady.md#details)).",
            "Let the machine settle first, and run longer. The line `steady` has the time of the change.",
        ),
        "warming": (
            "The run was slower at its start than later, which raises its mean time by more than 5 %.",
            "Run longer: the first seconds then count less.",
        ),
        "frequency-dropped": (
            "The fastest core became more than 10 % slower from the first third to the last (runs of at least 9 s).",
            "Let the machine settle with a longer run, or fix the frequency of its cores.",
        ),
        "thermal-throttled": (
            "The processor throttled itself because it was too hot.",
            "Improve cooling, or report only runs that start after throttling has become steady.",
        ),
        "settings-changed": (
            "The frequency governor, turbo, SMT, the cores online or the container's CPU quota changed during the run.",
            "Find the program that changed it, e.g. a power daemon, and run again.",
        ),
    },
    About.SETTINGS: {
        "governor": (
            "A frequency governor may slow down waiting cores (not checked in Offline).",
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
            "`--meter` is set, but no meter has readings for the whole run.",
            "Read the text; [power.md](power.md) explains each meter.",
        ),
        "power-implausible": (
            "A source reported more than 200 kW on average, or a source for a whole computer reported less than 0.3 W.",
            "Check the unit that the meter prints, and what the meter is connected to.",
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
"""Maps a code to its description. The documentation lists the codes of each kind in the same order."""

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")

INTERRUPTED = "interrupted"
HOPELESS = "hopeless"
CLIENT_BOUND = "client-bound"


def codes(kind: Kind, about: About) -> frozenset[str]:
    """Returns all codes of this kind that refer to this part of a run."""
    return frozenset(code for code, row in CODES.items() if (row.kind, row.about) == (kind, about))


def without_markup(text: str) -> str:
    """Returns the text of a code's meaning or advice without markup, for places outside the documentation."""
    return _LINK.sub(r"\1", text).replace("`", "")


MACHINE_DOUBTS = codes(Kind.DOUBT, About.MACHINE)
"""Codes for doubts raised because something on the machine disturbed the run."""


class _Reason(NamedTuple):
    code: str
    text: str


class Reason(_Reason):
    """Reason why a run is INVALID or doubtful: a code from CODES for programs, and a text with numbers for people."""

    __slots__ = ()

    def __new__(cls, code: str, text: str) -> Self:
        if code not in CODES:
            raise ValueError(
                f"{code!r} is not a code of harness/core/codes.py: add it to the table"
            )
        return super().__new__(cls, code, text)

    @classmethod
    def stored(cls, content: Mapping[str, str]) -> Self:
        """Returns a reason from a result file. If another version of the harness wrote the file, the code may be
        unknown to this version.
        """
        return cls._make((content["code"], content["text"]))
