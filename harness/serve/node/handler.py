"""Handles a driver's requests: batches (as indices or tensors), samples to load, and requests for the clock, the facts
or the journal.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import time_ns
from typing import Any

import numpy as np

from harness.core.registry import plugin
from harness.core.units import NS_PER_S
from harness.errors import HarnessError
from harness.machine.host_log import HostLog, HostReader, summary
from harness.models.opened.node import IN_USE, INDICES, RUN_BYTES, NodeFacts, by_indices
from harness.serve.answers import (
    Refusal,
    answer_head,
    connection_header,
    json_answer,
)
from harness.serve.calls import Call
from harness.serve.kserve import OpenInference
from harness.serve.loop import Later, Part
from harness.serve.node.instances import (
    Done,
    Instances,
    Rows,
    Waiting,
    Work,
    of_indices,
    of_tensors,
)
from harness.serve.requests import Head, Request
from harness.serve.served import ANY, TensorInfo
from harness.serve.statistics import Stamps, Statistics
from harness.types import Array, Batch, Dataset, Outputs

_ROW = b"row;desc=%d, "
"""The part of a reply's `Server-Timing` header that states the row number of the reply in the node's journal."""

_BINARY = "application/octet-stream"

SILENT_S = 5.0
"""A run that sends no request for this time counts as killed."""


class NodeModel:
    """One of the two models that a node serves: one takes indices, the other takes tensors."""

    def __init__(
        self,
        facts: NodeFacts,
        name: str,
        work: Work,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
    ) -> None:
        self.name = name
        self.backend_name = facts.backend
        self.max_batch = facts.max_batch
        self.inputs, self.outputs = inputs, outputs
        self.properties: Mapping[str, str] = {
            key: str(value) for key, value in facts.backend_description.items()
        }
        self.work = work

    def infer(self, _batch: Batch) -> Mapping[str, Array]:
        raise NotImplementedError("the instances of a node answer, on their own threads")


class _Inference(OpenInference):
    """Handles the requests for one of the models with the node's instances."""

    def __init__(
        self,
        served: NodeModel,
        name: str,
        put: Callable[[Waiting], None],
        rows: Rows,
        statistics: Statistics,
    ) -> None:
        """rows, statistics: the journal and the counts, which both models of a node share."""
        super().__init__(served, name, statistics)
        self._model_work = served.work
        self._put = put
        self._rows = rows

    def _infer(self, request: Request, arrived_ns: int, _taken_ns: int) -> Later:
        call, batch = self._asked(request)
        later = Later()
        reply = partial(self._reply, request.head, call, arrived_ns)
        self._put(Waiting(later, self._model_work, batch, reply))
        return later

    def _reply(
        self, head: Head, call: Call, arrived_ns: int, done: Done | BaseException, taken_ns: int
    ) -> bytes:
        if isinstance(done, BaseException):
            self.statistics.add_failed(time_ns() - arrived_ns)
            return b"".join(self._refusal(head, self._failed(done)))
        row = self._rows.add(arrived_ns, taken_ns, *done[1:], time_ns())
        stamps = Stamps(arrived_ns, taken_ns, taken_ns, done.postprocessed_ns)
        try:
            return b"".join(self._replied(head, call, done.outputs, stamps, _ROW % row))
        except Refusal as e:
            return b"".join(self._refusal(head, e))


class NodeHandler:
    """Handles all requests to a node; `Loop` calls the methods `handle` and `work`."""

    def __init__(
        self,
        facts: NodeFacts,
        name: str,
        inputs: Sequence[TensorInfo],
        answers: TensorInfo,
        named: Callable[[Outputs], Mapping[str, Array]],
        dataset: Dataset,
        loaded: Sequence[int],
    ) -> None:
        """answers: the output of the model that takes indices. named: a function that returns the model's outputs by
        name.

        loaded: dataset indices of the samples that are loaded.
        """
        self._facts = facts
        self._dataset = dataset
        self._loaded = list(loaded)
        self._rows = Rows()
        self._instances: Instances
        self.host = HostReader()
        """Reads the machine's state before and after a run, and once per second while the node processes queries."""
        self.host.pids = [facts.pid]
        self._loaded_ns = 0
        self._run = b""  # number of the run whose samples are loaded
        self._asked_ns = 0  # time of the run's last request
        of_samples = NodeModel(
            facts,
            by_indices(facts.model),
            of_indices,
            [TensorInfo(INDICES, "INT32", (ANY,))],
            [answers],
        )
        whole = NodeModel(facts, facts.model, of_tensors(named), inputs, ())

        def put(waiting: Waiting) -> None:
            self._instances.put(waiting)

        self._statistics = Statistics(facts.model)
        self._inferences = [
            _Inference(model, name, put, self._rows, self._statistics)
            for model in (of_samples, whole)
        ]
        self._own: Mapping[tuple[str, str], Callable[[Request, int], bytes]] = {
            ("GET", "/harness/node"): self._tell,
            ("GET", "/harness/clock"): self._clock,
            ("GET", "/harness/journal"): self._journal,
            ("GET", "/harness/host"): self._tell_host,
            ("POST", "/harness/load"): self._load,
            ("POST", "/harness/leave"): self._leave,
        }

    def start(self, instances: Instances) -> None:
        self._instances = instances

    @property
    def answered(self) -> int:
        return sum(each.answered for each in self._inferences)

    @property
    def refused(self) -> int:
        return self._statistics.refused

    @property
    def unknown(self) -> int:
        return self._statistics.unknown

    @property
    def first_failure(self) -> str:
        return next((e.first_failure for e in self._inferences if e.first_failure), "")

    def handle(self, request: Request, arrived_ns: int) -> Sequence[bytes | memoryview] | Later:
        """Handles a request. Returns the parts of the reply, or a Later if the parts follow later."""
        head = request.head
        own = self._own.get((head.method, head.path))
        if own is not None:
            try:
                return [own(request, arrived_ns)]
            except Refusal as e:
                error = {"error": str(e)}
                return [json_answer(error, connection_header(head), e.status)]
        self._asked_ns = arrived_ns
        of_samples, whole = self._inferences
        if f"@{INDICES}" in head.path:
            return of_samples.handle(request, arrived_ns)
        return whole.handle(request, arrived_ns)

    def work(self) -> Sequence[Part] | None:
        """Returns the replies to the batches that were completed since the last call."""
        found = self._instances.done()
        if not found:
            return None
        return [
            Part(waiting.later, waiting.reply(done, taken_ns), is_last=True)
            for waiting, done, taken_ns in found
        ]

    def _tell(self, request: Request, _arrived_ns: int) -> bytes:
        return json_answer(self._facts.to_json(), connection_header(request.head))

    def _clock(self, request: Request, arrived_ns: int) -> bytes:
        stamps = {"arrived_ns": arrived_ns, "now_ns": time_ns()}
        return json_answer(stamps, connection_header(request.head))

    def _journal(self, request: Request, _arrived_ns: int) -> bytes:
        rows = self._rows.to_bytes()
        headers = {"Content-Type": _BINARY, "Content-Length": len(rows)}
        return answer_head(200, headers) + connection_header(request.head) + b"\r\n" + rows

    def _tell_host(self, request: Request, _arrived_ns: int) -> bytes:
        """Returns the machine's data for the time since the samples were loaded, in the format of `host` in
        result.json.
        """
        self.host.look()
        found = summary(self.host.log, (self._loaded_ns, time_ns()))
        return json_answer(found or {}, connection_header(request.head))

    def _load(self, request: Request, arrived_ns: int) -> bytes:
        """Loads a run's samples in place of the earlier samples, and empties the journal.

        The body contains the run's number, followed by dataset indices (INT32). Other runs are refused until this run
        leaves the node, or sends no request for SILENT_S.
        """
        run, body = bytes(request.body[:RUN_BYTES]), request.body[RUN_BYTES:]
        if len(run) < RUN_BYTES or len(body) % 4:
            raise Refusal(400, "the body does not consist of a run number and a list of INT32")
        if self._run not in (b"", run) and arrived_ns - self._asked_ns < SILENT_S * NS_PER_S:
            raise Refusal(IN_USE, "the node is in use by a different run")
        self._run, self._asked_ns = run, arrived_ns
        indices = np.frombuffer(body, "<i4").tolist()
        count = self._facts.total_count
        if any(not 0 <= index < count for index in indices):
            raise Refusal(400, f"the dataset has {count:,} samples, but an index is out of range")
        try:
            with plugin(f"dataset {self._facts.dataset!r}"):
                self._dataset.unload(self._loaded)
                self._loaded = []
                self._dataset.load(indices)
        except HarnessError as e:
            raise Refusal(500, str(e)) from None
        self._loaded = indices
        self._rows.clear()
        self._loaded_ns = time_ns()
        self.host.log = HostLog()
        self.host.look()
        loaded: Mapping[str, Any] = {"loaded": len(indices)}
        self._asked_ns = time_ns()
        return json_answer(loaded, connection_header(request.head))

    def _leave(self, request: Request, _arrived_ns: int) -> bytes:
        """Releases the node, so that another run may load samples immediately. The body contains the run's number."""
        if bytes(request.body) == self._run:
            self._run = b""
        return json_answer({}, connection_header(request.head))
