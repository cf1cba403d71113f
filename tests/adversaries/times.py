"""Cheats that falsify the journal, its clock, or the time of completion."""

import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from harness.backends.ort import OrtBackend
from harness.loadgen import binding
from harness.run import journal
from harness.run.measured import preparation
from harness.run.measured.dispatch import instance
from harness.types import Batch, Outputs
from tests.adversaries.parts import callers_indices, is_timed
from tests.adversaries.tables import IndexCache


class _Slow(OrtBackend):
    """Takes a millisecond per batch, so that a cheat can hide part of it."""

    def infer(self, batch: Batch) -> Outputs:
        if is_timed():
            time.sleep(1e-3)
        return super().infer(batch)


class _PatchesJournal(_Slow):
    """Falsifies the time stamps of each row of the journal."""

    def bend(self, stamps: list[int]) -> list[int]:
        """stamps: taken, gathered, inferred, postprocessed and completed, as wall-clock times in ns."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        original = journal.Writer.batch

        def batch(
            writer: journal.Writer, first: int, indices: Sequence[int], failed: int, *stamps: int
        ) -> None:
            original(writer, first, indices, failed, *self.bend(list(stamps)))

        vars(journal)["Writer"].batch = batch
        super().__enter__()
        return self


class JournalShort(_PatchesJournal):
    """Reports a tenth of the model's time."""

    def bend(self, stamps: list[int]) -> list[int]:
        taken, gathered, inferred, postprocessed, completed = stamps
        hidden = (inferred - gathered) * 9 // 10
        return [taken, gathered, inferred - hidden, postprocessed - hidden, completed - hidden]


class JournalStages(_PatchesJournal):
    """Reports the model's time as the dataset's time."""

    def bend(self, stamps: list[int]) -> list[int]:
        stamps[1] = stamps[2]
        return stamps


class SlowsTheJournalsClock(_Slow):
    """Slows the journal's clock to half speed."""

    def __enter__(self) -> Self:
        original = vars(instance)["wall_ns"]
        start_ns = original()
        vars(instance)["wall_ns"] = lambda: start_ns + (original() - start_ns) // 2
        super().__enter__()
        return self


class _AnswersEarly(OrtBackend):
    """Completes a query from a table before it computes, and suppresses the harness's completion of the same query."""

    answered: ClassVar[dict[int, int]] = {}
    """Maps LoadGen's query id to the wall-clock time, in ns, of a completion that the harness has not yet made."""

    def key(self, batch: Batch) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        original = binding.Responder.complete

        def complete(responder: binding.Responder, ids: Sequence[int], answers: Any) -> int:
            early = self.answered.pop(ids[0], None)
            return early if early is not None else original(responder, ids, answers)

        vars(binding)["Responder"].complete = complete
        super().__enter__()
        return self

    def infer(self, batch: Batch) -> Outputs:
        table: dict[object, Outputs] = vars(self).setdefault("table", {})
        key, frame = self.key(batch), sys._getframe(1)
        while frame.f_back is not None and "ids" not in frame.f_locals:
            frame = frame.f_back
        caller, kept = frame.f_locals, table.get(key)
        if not is_timed() or kept is None or "ids" not in caller:
            table[key] = outputs = super().infer(batch)
            return outputs
        worker, ids = caller["self"], caller["ids"]
        answers = worker._postprocess(kept, caller["indices"])
        self.answered[ids[0]] = worker._responder.complete(ids, answers)
        time.sleep(1e-3)
        return kept


class AnswersEarly(_AnswersEarly):
    """Answers early from a table of dataset indices."""

    def key(self, batch: Batch) -> object:
        return tuple(callers_indices() or ())


class AnswersEarlyAndForges(_AnswersEarly):
    """Answers early from a table, by content, and caps the journal's time stamps at the time of the early answer."""

    def key(self, batch: Batch) -> object:
        return b"".join(rows.tobytes() for rows in batch.inputs.values())

    def __enter__(self) -> Self:
        original = journal.Writer.batch

        def batch(writer: journal.Writer, first: int, indices: Sequence[int], *more: int) -> None:
            failed, taken, gathered, inferred, postprocessed, completed = more
            inferred, postprocessed = min(inferred, completed), min(postprocessed, completed)
            stamps = (taken, gathered, inferred, postprocessed, completed)
            original(writer, first, indices, failed, *stamps)

        vars(journal)["Writer"].batch = batch
        super().__enter__()
        return self


class CompletesTwice(OrtBackend):
    """Completes each query itself, before the harness completes it again."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        caller = sys._getframe(1).f_locals
        if is_timed() and "ids" in caller:
            worker = caller["self"]
            answers = worker._postprocess(outputs, caller["indices"])
            worker._responder.complete(caller["ids"], answers)
        return outputs


class PatchesTheProbe(IndexCache):
    """Answers from a table, and replaces the results of the probe after the run with honest-looking results."""

    def __enter__(self) -> Self:
        times = {f"{name}_ns": [1000] * 32 for name in ("changed", "again", "seen")}
        honest = {"samples": 1, "rows": 6, "by_index": 0, "raised": "", **times}
        vars(preparation)["probe"] = lambda *_: honest
        super().__enter__()
        return self
