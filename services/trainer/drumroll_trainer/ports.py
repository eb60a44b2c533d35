"""What the trainer needs of the world around it: scheduler, samples, learner. Each has a fake in this package."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from drumroll_planner import records as r
from drumroll_proto.v1 import scheduler_pb2


class SchedulerPort(Protocol):
    """The calls that the trainer makes; `drumroll.rpc.SchedulerClient` has them."""

    async def register(
        self, request: scheduler_pb2.RegisterRequest, *, deadline_s: float = ...
    ) -> scheduler_pb2.RegisterReply: ...

    async def next_step(
        self, request: scheduler_pb2.NextStepRequest, *, deadline_s: float = ...
    ) -> scheduler_pb2.NextStepReply: ...

    async def commit(
        self, request: scheduler_pb2.CommitRequest, *, deadline_s: float = ...
    ) -> scheduler_pb2.CommitReply: ...

    async def announce(
        self, request: scheduler_pb2.AnnounceRequest, *, deadline_s: float = ...
    ) -> scheduler_pb2.AnnounceReply: ...


class SampleSource(Protocol):
    """Where the payloads of decided samples are."""

    async def read(self, decision: r.Decided) -> list[bytes | None]:
        """Payloads in the decision's order, verified against its sums; None where one is gone or damaged.

        Raises:
            TemporaryError: the store does not answer.
        """
        ...


class WeightExport(Protocol):
    """The weights of one moment, in the form in which they are published."""

    @property
    def weights_digest(self) -> str:
        """As the weight store computes it."""
        ...

    def write(self, directory: Path) -> None:
        """Write safetensors, config and tokenizer files."""
        ...


class LearnerPort(Protocol):
    """The learner on all ranks, as rank 0 sees it. Calls block until the work is done."""

    @property
    def vocab_size(self) -> int:
        """Token ids from here on do not exist."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    def restore(self, folder: Path | None) -> None:
        """Start anew from the model directory, or from a checkpoint folder."""
        ...

    def train(self, decision: r.Decided, payloads: Sequence[bytes]) -> dict[str, float]:
        """Take the decided step; returns its statistics."""
        ...

    def export(self) -> WeightExport:
        """The weights as they are now."""
        ...

    def probe(self, token_ids: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first, with the weights rounded to the job's dtype."""
        ...

    def save(self, folder: Path) -> None:
        """Write parameters and optimizer state into an empty folder."""
        ...

    def rng_state(self) -> str:
        """torch's random state, hexadecimal."""
        ...

    def idle(self) -> None:
        """Nothing to do for now: tells the other ranks that rank 0 is alive."""
        ...

    def stop(self) -> None:
        """Send the other ranks home."""
        ...
