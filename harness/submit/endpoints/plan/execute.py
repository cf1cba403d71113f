"""Runs the missing points with the official client, one after another. Keeps the points that are already finished."""

from collections.abc import Sequence
from pathlib import Path

from harness.core.config.address import parse_address
from harness.core.console import say
from harness.core.signals import Stopped, stoppable
from harness.errors import ConfigError, RunInvalid, one_line
from harness.run.progress import Progress
from harness.submit.endpoints import runs
from harness.submit.endpoints.client.checkout import ensure_client, program_of
from harness.submit.endpoints.client.config import Template
from harness.submit.endpoints.client.process import run_client
from harness.submit.endpoints.plan import table
from harness.submit.endpoints.plan.alone import alone
from harness.submit.endpoints.points import Curve
from harness.submit.endpoints.request import Request
from harness.submit.plan.matrix import show_s
from harness.wire.connections import Server
from harness.wire.server_metrics import ServerMetrics
from harness.wire.server_series import Series

_STARTS = 3
"""Maximum number of attempts per point. An attempt fails before its first request if the client's processes do not
start within 25 s.
"""

_WRONG_CONFIG = 2
"""The client's exit status for an unusable configuration or data set. The same error would stop all other points, so
`execute` ends.
"""


def execute(
    request: Request,
    template: Template,
    curve: Curve,
    work: Path,
    client: Path | None,
    only: str | None,
    *,
    quiet: bool,
) -> int:
    """Returns 0 if every point is done, otherwise 4. client: a checkout of mlcommons/endpoints; only: a single point,
    such as r16.
    """
    names = [point.name for point in curve.points]
    if only is not None and only not in names:
        raise ConfigError(f"--only {only}: choose from {', '.join(names)}")
    with alone(work), stoppable() as stopping, Progress(quiet=quiet) as progress:
        try:
            with stopping.allowed():
                _prove(work, client)
            for row in table.rows(request, template, curve, work):
                if row.state != runs.DONE and only in (None, row.point.name):
                    with stopping.allowed():
                        _made(request, row, work, progress, quiet=quiet)
        except Stopped as e:
            say("stopped: repeat `endpoints run` to measure the remaining points")
            return e.exit_status
    rows = table.rows(request, template, curve, work)
    for row in rows:
        if row.state != runs.DONE and only in (None, row.point.name):
            say(f"{row.point.name} {row.state}: {row.why}")
    done = all(row.state == runs.DONE for row in rows if only in (None, row.point.name))
    return 0 if done else RunInvalid.exit_status


def _prove(work: Path, client: Path | None) -> None:
    proof = ensure_client(work, client)
    say(f"client {proof.commit[:12]}: clean, {proof.files:,} files, SHA-256 {proof.digest[:12]}")
    if not proof.is_known:
        say("this commit is not in data/rules.yaml: a reviewer must find it in mlcommons/endpoints")


def _made(request: Request, row: table.Row, work: Path, progress: Progress, *, quiet: bool) -> None:
    """Runs a point with the official client. Repeats the run if the client ended before its first request, as it may on
    a busy machine.

    Raises a ConfigError if the client never sent a request or if every request failed, because then all other points
    would fail, too.
    """
    error = ""
    for _ in range(_STARTS):
        attempt, status = _run(request, row, work, progress, quiet=quiet)
        if status == 0 and (why := runs.all_failed(attempt)):
            raise ConfigError(f"{row.point.name}: {why}: correct the template or the server")
        if status == 0 or has_issued(attempt):
            return
        error = last_error(attempt)
    raise ConfigError(
        f"{row.point.name}: the client ended {_STARTS} times before its first request: {error}"
    )


def has_issued(attempt: runs.Attempt) -> bool:
    """Returns whether the client sent a request."""
    try:
        with attempt.events.open("rb") as file:
            return any(b'"sample.issued"' in line for line in file)
    except OSError:
        return False


def _run(
    request: Request, row: table.Row, work: Path, progress: Progress, *, quiet: bool
) -> tuple[runs.Attempt, int]:
    attempt = runs.next_attempt(work, row.point.name)
    asked = {**row.asked, "report_dir": str(attempt.report.absolute())}
    progress.series(f"point {row.point.name}", row.expected_s)
    metrics = ServerMetrics(_pages(request.url), _times()) if request.url else None

    def look(took_s: float) -> None:
        share = None if not row.expected_s else min(1.0, took_s / row.expected_s)
        progress.show("running", share=share, details=[show_s(took_s)])

    try:
        status = run_client(program_of(work), work, attempt, asked, metrics, look)
    finally:
        if metrics is not None:
            metrics.close()
    if status == _WRONG_CONFIG:
        raise ConfigError(
            f"{row.point.name}: the client refuses its configuration: {last_error(attempt)}"
        )
    outcome = "done" if status == 0 else f"exit status {status}: {last_error(attempt)}"
    if status or not quiet:
        say(f"{row.point.name} {outcome}")
    return attempt, status


def _times() -> list[Series]:
    """Returns the metrics series with the times that the server measured, which `witness` compares with the client's
    times.
    """
    names = [name for many in runs.SERVER_TIMES.values() for name in many]
    return [Series(f"{name}_{part}") for name in names for part in ("sum", "count")]


def _pages(urls: Sequence[str]) -> list[Server]:
    """Returns the servers' metrics pages."""
    found = []
    for url in urls:
        address = parse_address(url)
        prefix = address.prefix.rstrip("/").removesuffix("/v1")
        found.append(Server(address=address._replace(prefix=f"{prefix}/metrics")))
    return found


def last_error(attempt: runs.Attempt) -> str:
    """Returns the client's last message that looks like an error; without such a message, the client's last line."""
    log = attempt.folder / runs.LOG
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"see {log}"
    errors = [line for line in lines if "ERROR" in line or "Error" in line] or lines[-1:]
    message = errors[-1].rpartition(" - ERROR - ")[2] if errors else "no message"
    return one_line(f"{message} ({log})")
