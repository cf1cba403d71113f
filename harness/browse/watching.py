"""Shows a run in progress: its state once as a page, and every second as a server-sent event."""

from collections.abc import AsyncIterator
from contextlib import suppress
from time import monotonic

import anyio
from starlette.concurrency import run_in_threadpool

from harness.browse.index import Index, Missing, read_row
from harness.browse.live import Snapshot, snapshot
from harness.browse.texts import render, url
from harness.core.files import PARTIAL
from harness.errors import HarnessError

PERIOD_S = 1.0
PATIENCE = 5
"""Unanswered looks in a row after which a run counts as ended: a busy endpoint may miss one."""


class Watching:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._states: dict[str, Snapshot] = {}  # the last one, so that two pages do not call twice

    def page(self, path: str) -> str:
        """The state now; for a run that has ended, where it is. Raises Missing."""
        entries = self._index.entries()
        if path not in entries and path.removesuffix(PARTIAL) not in entries:
            raise Missing(path)
        state = self._look(path)
        return render(
            "live.html",
            title=path,
            path=path,
            panel=self._panel(path, state, None),
            is_running=isinstance(state, Snapshot),
        )

    async def events(self, path: str) -> AsyncIterator[str]:
        """`state` events with the panel as HTML, then one `end` event."""
        before: Snapshot | None = None
        missed = 0
        while True:
            state = await run_in_threadpool(self._look, path)
            ended = await run_in_threadpool(self._ended, path)
            missed = missed + 1 if isinstance(state, str) else 0
            if ended or missed >= PATIENCE:
                yield _event("end", self._panel(path, state, before))
                return
            if isinstance(state, Snapshot):
                yield _event("state", self._panel(path, state, before))
                before = state
            await anyio.sleep(PERIOD_S)

    def _look(self, path: str) -> Snapshot | str:
        last = self._states.get(path)
        if last is not None and monotonic() - last.at_s < PERIOD_S / 2:
            return last
        state = snapshot(self._index.root, path)
        if isinstance(state, Snapshot):
            self._states[path] = state
        else:
            self._states.pop(path, None)
        return state

    def _ended(self, path: str) -> bool:
        """Whether the folder has lost `.partial`, or is gone."""
        return not (self._index.root / path).is_dir()

    def _panel(self, path: str, state: Snapshot | str, before: Snapshot | None) -> str:
        """before: the state one event ago, for the rate between the two."""
        finished = path.removesuffix(PARTIAL)
        verdict = None
        if finished != path:
            with suppress(OSError, HarnessError):
                verdict = read_row(self._index.root, finished)["verdict"]
        now = None
        if isinstance(state, Snapshot) and before is not None and before.phase == state.phase:
            now = (state.completed - before.completed) / max(state.at_s - before.at_s, 1e-3)
        return render(
            "panel.html",
            state=state if isinstance(state, Snapshot) else None,
            problem=state if isinstance(state, str) else None,
            rate_now=now,
            verdict=verdict,
            finished=url("run", finished),
        )


def _event(name: str, html: str) -> str:
    data = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {name}\n{data}\n"
