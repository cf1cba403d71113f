"""A stateful model in this process, whose sequences arrive in real time, frame by frame."""

from harness.models.manifest.hook import postprocessor_of
from harness.models.sequences.backend import SequenceBackend
from harness.run.measured.streams.dispatch import FrameDispatcher
from harness.run.measured.streams.instance import StreamInstance
from harness.run.measured.streams.playing import Streams
from harness.run.measured.systems.local import LocalModel
from harness.run.measured.systems.system import Dispatch, RunParts

NAME = "frames"
"""The dispatcher's name in result.json."""


class RealTimeModel(LocalModel):
    """Instances of a model that share the states of all streams. An accuracy run processes complete sequences."""

    no_schedule = "the frames of a stream wait for each other"

    def dispatch(self, parts: RunParts) -> Dispatch:
        plan, preparation, journal, failures, complete = parts
        if plan.streams is None or complete is None:
            return super().dispatch(parts)
        backends = [each.backend for each in preparation.answerers]
        first = backends[0]
        assert isinstance(first, SequenceBackend)  # preflight refuses models without states
        held = plan.performance_count
        streams = Streams(first, self.dataset, held, plan.streams, plan.seeds.sample_index)
        postprocess = postprocessor_of(self._output, self._hook)
        instances = []
        for number, (each, backend) in enumerate(zip(preparation.answerers, backends, strict=True)):
            assert isinstance(backend, SequenceBackend)
            writer = journal.writer(number)
            instances.append(
                StreamInstance(backend, streams, postprocess, complete, writer, failures, each.cpus)
            )
        dispatcher = FrameDispatcher(instances, self.max_batch, journal.issuer(), plan.streams)
        return Dispatch(dispatcher, NAME, self._group.issuer)
