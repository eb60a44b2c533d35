"""The narrow interfaces through which the worker sees everything outside of itself but the engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.entries import Entry, EntryRef
from drumroll.samples import EntryKind, SampleId
from drumroll.weights_manifest import WeightManifest


class SchedulerCalls(Protocol):
    """The calls of `drumroll.rpc.SchedulerClient` that a replica makes."""

    async def register(self, request: pb.RegisterRequest, *, deadline_s: float = ...) -> pb.RegisterReply: ...

    async def heartbeat(self, request: pb.HeartbeatRequest, *, deadline_s: float = ...) -> pb.HeartbeatReply: ...

    async def lease(self, request: pb.LeaseRequest, *, deadline_s: float = ...) -> pb.LeaseReply: ...

    async def report(self, request: pb.ReportRequest, *, deadline_s: float = ...) -> pb.ReportReply: ...

    async def hand_back(self, request: pb.HandBackRequest, *, deadline_s: float = ...) -> pb.HandBackReply: ...

    async def pin(self, request: pb.PinRequest, *, deadline_s: float = ...) -> pb.PinReply: ...


class PublishedVersions(Protocol):
    """The part of `drumroll.weights.WeightStore` that a replica reads."""

    def verify(self, version: int, manifest_sha256: str) -> WeightManifest: ...

    def path(self, version: int) -> Path: ...


class Prompts(Protocol):
    """The part of `drumroll.data.PreparedDataset` that a replica reads."""

    def __len__(self) -> int: ...

    def prompt_ids(self, row: int) -> list[int]: ...

    def reward_inputs(self, row: int) -> dict[str, Any]: ...


class Score(Protocol):
    """One reward, whole and in parts."""

    @property
    def reward(self) -> float: ...

    @property
    def parts(self) -> dict[str, float]: ...


class Scorer(Protocol):
    """The part of the rewards package that a replica uses; raises RewardError or RewardCrash."""

    async def score(
        self,
        prompts: list[Any],
        completions_text: list[str],
        completion_ids: list[list[int]],
        inputs: list[dict[str, Any]],
        finished: list[bool],
    ) -> Sequence[Score]: ...


class TextDecoder(Protocol):
    """Tokens to text, for rewards alone: nothing here turns text into tokens."""

    def __call__(self, token_ids: Sequence[int]) -> str: ...


class SampleStore(Protocol):
    """The part of `drumroll.stream.SampleStream` that a replica uses; raises StoreUnavailable, SampleLost or
    CorruptError."""

    async def add(self, *, sample: SampleId, lease_id: str, kind: EntryKind, payload: bytes) -> EntryRef: ...

    async def read(self, refs: Sequence[EntryRef], *, kind: EntryKind = ...) -> list[Entry]: ...
