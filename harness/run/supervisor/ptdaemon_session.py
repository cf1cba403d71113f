"""Executes a run under MLPerf Power, `--meter ptdaemon=...`, with power-dev's client and server.

client.py runs on this machine, server.py on the director. client.py runs workload.sh twice. During the first run
(`ranging`), server.py lets PTDaemon find the analyser's ranges. During the second run (`testing`), server.py lets
PTDaemon measure. power-dev's client and server do all of the measuring, and treat a run as one command. The files of
both runs go into one result folder.
"""

import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from harness.core import files
from harness.core.child import run_program
from harness.core.config import code
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import say
from harness.core.formats.strict_yaml import write_yaml
from harness.core.signals import Stopped, signal_name, stoppable
from harness.core.units import write_duration
from harness.errors import ConfigError, HarnessError, RunInvalid
from harness.machine.power.meters.ptdaemon import NAME, PtdaemonMeter
from harness.machine.power.ptdaemon_client import WORKLOAD, PowerClient
from harness.machine.power.ptdaemon_log import CLIENT_JSON, SPL, PtdaemonLog
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import recheck, resolved, run_folder
from harness.results.seal.digests import PAGE
from harness.run.supervisor import preflight
from harness.run.supervisor.keeper import RunKeeper

CLIENT_LOG = "power-client.log"
CHECK_LOG = "power-check.log"
WORKLOAD_CONFIG = "workload.yaml"

_SESSION_FILES = tuple(
    f"{folder}/{name}"
    for folder, names in {
        "power": (CLIENT_JSON, "client.log", "server.json", "server.log", "ptd_logs.txt"),
        "ranging": (SPL, "mlperf_log_detail.txt", "mlperf_log_summary.txt"),
        "run_1": (SPL, "mlperf_log_detail.txt", "mlperf_log_summary.txt"),
    }.items()
    for name in names
)
"""Files of a complete session, from power-dev's README. The client's exit status does not show whether a session is
complete: the status is 0 even if NTP fails.
"""

_SCRIPT = """\
#!/bin/sh
# MLPerf Power's client runs this script twice: first in ranging mode, then in testing mode. The second
# run has the same load, with the counts and rates that the first run determined.
cd {here} || exit 2
runs={runs}
if [ -d "$runs/ranging" ]; then
    config=$runs/ranging/config.yaml out=$runs/testing
else
    config={config} out=$runs/ranging
fi
{command} --config "$config" --out "$out"
status=$?
# 4: the run is INVALID, but complete; its verdict is in its result.
[ $status -eq 4 ] && exit 0
exit $status
"""


def is_requested(config: RunConfig) -> bool:
    return any(name == NAME for name, _ in config.meter)


def execute(
    config: RunConfig, *, as_json: bool = False, quiet: bool = False, details: bool = False
) -> int:
    """Makes the run as configured while PTDaemon measures. Prints the table and returns the exit status."""
    with stoppable() as stopping:
        session = _Session(config, quiet=quiet)
        try:
            with stopping.allowed():
                session.measure()
            return session.conclude(as_json=as_json, details=details)
        except Stopped as e:
            say(f"stopped by {signal_name(e.signum)} before the end of the session")
            session.give_up(keep=False)
            return e.exit_status
        except HarnessError as e:
            session.give_up(keep=not isinstance(e, ConfigError))
            raise
        except OSError as e:
            folder = session.folder.path
            raise RunInvalid(f"{folder} cannot be written ({e}): pass a different --out") from e


class _Session:
    """One session with PTDaemon. Its result folder holds both runs in `runs` and the client's files in `session`."""

    def __init__(self, config: RunConfig, *, quiet: bool) -> None:
        """Makes the result folder. Before that, raises a ConfigError that lists every problem."""
        self._config, self._quiet = config, quiet
        others = tuple((name, argument) for name, argument in config.meter if name != NAME)
        self._meter = PtdaemonMeter(next(a for name, a in config.meter if name == NAME))
        self._plain = replace(config, meter=others, out=None)
        self._model = _resolve(config, self._plain, self._meter).model
        name = self._model.name
        self.folder = run_folder.new_folder(config.out, config.scenario, config.backend, name)
        path = self.folder.path.absolute()
        self._path, self._runs, self._session = path, path / "runs", path / "session"
        self._client = PowerClient(path / CLIENT_LOG, quiet=quiet)

    def _script(self) -> str:
        config = self._config
        # `mlperf-harness` imports nothing from the working directory, so its workload must not import from that
        # directory either.
        has_here = not {"", str(Path.cwd())}.isdisjoint(sys.path)
        words = [sys.executable, *(() if has_here else ("-P",)), "-m", "harness"]
        words += ["--quiet"] if self._quiet else []
        words += ["--no-metrics"] if config.no_metrics else []
        words += ["--metrics", str(config.metrics)] if config.metrics else []
        # workload.yaml contains the code paths that the user typed; config.yaml contains absolute paths.
        words += code.trust_options(code.values_of(self._plain), resolved.absolute(self._plain))
        linger_ns = config.metrics_linger_ns
        words += ["--metrics-linger", write_duration(linger_ns)] if linger_ns else []
        words += ["--metrics-push", config.metrics_push] if config.metrics_push else []
        return _SCRIPT.format(
            here=shlex.quote(str(Path.cwd())),
            runs=shlex.quote(str(self._runs)),
            config=shlex.quote(str(self._path / WORKLOAD_CONFIG)),
            command=shlex.join(words),
        )

    def measure(self) -> None:
        """Runs both phases. Raises an error for the user if one phase fails."""
        meter, model = self._meter, self._model
        preflight.obtain_model(self._plain, model)
        self._runs.mkdir()
        write_yaml(self._path / WORKLOAD_CONFIG, to_plain(self._plain))
        (self._path / WORKLOAD).write_text(self._script(), encoding="utf-8")
        label = re.sub(r"[^\w-]", "_", f"{self._config.scenario}_{model.name}", flags=re.ASCII)
        if not self._quiet:
            where = f"MLPerf Power by {meter.host}:{meter.port}"
            say(f"{where}: the load runs twice, with pauses of 10 s around each run")
        status = self._client.run(
            [
                sys.executable,
                str(meter.client),
                f"--addr={meter.host}",
                f"--port={meter.port}",
                f"--ntp={meter.ntp}",
                f"--label={label}",
                f"--run-workload=sh {shlex.quote(str(self._path / WORKLOAD))}",
                f"--loadgen-logs={self._runs}",
                f"--output={self._session}",
                "--no-timestamp-path",
            ]
        )
        if status or not all((self._session / name).is_file() for name in _SESSION_FILES):
            raise self._client.failure(status, has_run=self._has_run)

    @property
    def _has_run(self) -> bool:
        """Whether a run has written files that must be kept."""
        return (self._path / run_folder.RESULT).exists() or any(self._runs.glob("*/"))

    def give_up(self, *, keep: bool) -> None:
        """Keeps the folder if `keep` is true or something was measured; otherwise removes it."""
        if keep or self._has_run:
            say(f"the files written so far are in {self.folder.path}")
        else:
            shutil.rmtree(self.folder.path, ignore_errors=True)

    def conclude(self, *, as_json: bool, details: bool) -> int:
        """Merges both runs and the session's files into one result: the testing run with its power."""
        testing = self._runs / "testing"
        if not testing.is_dir():  # the folder gets this name only when it is complete
            raise RunInvalid(f"{testing} is not complete: see {self._path / CLIENT_LOG}")
        refused = self._refused()
        self._merge(testing)
        path = self._path
        config = recheck.configuration(path)
        meters = ((NAME, self._meter.argument), *config.meter)
        config = replace(
            config, meter=meters, sign=self._config.sign, no_report=self._config.no_report
        )
        write_yaml(path / run_folder.CONFIG, to_plain(config))
        findings = recheck.findings(path, config)
        findings.environment = files.read_json(path / run_folder.RESULT)["environment"]
        findings.ptdaemon = PtdaemonLog.from_files({"refused": refused}, path / "performance")
        keeper = RunKeeper(self.folder, findings, None)
        finished = keeper.conclude(0)
        finished.show(as_json=as_json, details=details)
        keeper.report(as_json=as_json)
        return finished.status

    def _refused(self) -> list[str]:
        """Returns the checks of power-dev's checker that the session fails."""
        command = [sys.executable, str(self._meter.checker), str(self._session)]
        # A new session keeps Ctrl-C away from the program.
        done = run_program(command, start_new_session=True)
        (self._path / CHECK_LOG).write_text(done.stdout, encoding="utf-8")
        if not done.returncode:
            return []
        failed = re.findall(r"^ERROR:\w+:\[ \] (.+)$", done.stdout, re.MULTILINE)
        return failed or [f"it ended with status {done.returncode}"]

    def _merge(self, testing: Path) -> None:
        for entry in testing.iterdir():
            entry.rename(self._path / entry.name)
        # The page is removed, because it was drawn before the power was known.
        (self._path / PAGE).unlink(missing_ok=True)
        (self._runs / "ranging").rename(self._path / "ranging")
        performance = self._path / "performance"
        for name in ("power", "ranging"):
            (self._session / name).rename(performance / name)
        # These entries are power-dev's copies of the logs.
        for entry in (self._session / "run_1").iterdir():
            entry.replace(performance / "run_1" / entry.name)
        for folder in (self._runs, self._session):
            shutil.rmtree(folder)


def _resolve(config: RunConfig, plain: RunConfig, meter: PtdaemonMeter) -> ResolvedRun:
    """Returns the run without its PTDaemon session. Raises a ConfigError that lists all problems, before anything
    starts.
    """
    problems = list(meter.problems())
    if config.mode != "performance":
        problems.append(f"meter {NAME!r} measures a performance run: add --mode performance")
    if [name for name, _ in config.meter].count(NAME) > 1:
        problems.append(f"--meter {NAME} appears twice: keep one")
    try:
        resolved = preflight.resolve(plain)
    except ConfigError as e:
        raise ConfigError("\n".join([*problems, str(e)])) from None
    if problems:
        raise ConfigError("\n".join(problems))
    return resolved
