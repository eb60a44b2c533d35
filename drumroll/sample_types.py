"""What a sample is: one or more token sequences with everything that training needs to know of them.

Token positions in segments, turns, masks and log-probabilities count from the first completion token. Values are
frozen; arrays are compared by `drumroll.samples.encode`, not by ==.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from drumroll.job import ResolvedJob
from drumroll.tensors import Array

SCHEMA_VERSION = 1
_MAX_SEGMENTS = 4096
_SEGMENT_BYTES = 128
_FIXED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, order=True)
class SampleId:
    """One try at one of a ticket's samples."""

    epoch: int
    ordinal: int
    index: int
    """0 .. groupSize - 1."""
    attempt: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.ordinal}#{self.index} attempt {self.attempt}"


class EntryKind(StrEnum):
    """What an entry of the stream holds."""

    SAMPLE = "sample"
    PARTIAL = "partial"
    """The tokens so far of a sample that another replica goes on with."""


class LogprobKind(StrEnum):
    """Whose log-probabilities they are."""

    RAW = "raw"
    """Of the model's own distribution."""
    PROCESSED = "processed"
    """Of the distribution that was sampled from (temperature and the like applied)."""


class FinishReason(StrEnum):
    """Why the completion ended."""

    STOP = "stop"
    """An end token or a stop string."""
    LENGTH = "length"
    """Cut at the token limit."""
    DRAINED = "drained"
    """Not finished: handed back."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Which weights made the completion tokens [start, end)."""

    version: int
    lineage: int
    replica: str
    instance: str
    start: int
    end: int
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of an episode, or a tool's span: completion tokens [start, end)."""

    role: str
    start: int
    end: int
    started_at: float
    """Unix seconds."""
    finished_at: float
    tool: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One chain of tokens: P prompt tokens, then C completion tokens (C >= 1)."""

    prompt_length: int
    """P."""
    token_ids: npt.NDArray[np.int32]
    """[P + C]."""
    loss_mask: npt.NDArray[np.uint8]
    """[C]; 1 where the token enters the loss."""
    logprobs: npt.NDArray[np.float32]
    """[C]; finite."""
    logprob_kind: LogprobKind
    segments: tuple[Segment, ...]
    """Cover [0, C) in order, without gaps."""
    finish_reason: FinishReason
    reward: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    parent: int | None = None
    """Index of the sequence that this one branched from."""
    branch_point: int = 0
    turns: tuple[Turn, ...] = ()
    side_tensors: Mapping[str, Array] = field(default_factory=dict)

    @property
    def prompt_ids(self) -> npt.NDArray[np.int32]:
        """[P]."""
        return self.token_ids[: self.prompt_length]

    @property
    def completion_ids(self) -> npt.NDArray[np.int32]:
        """[C]."""
        return self.token_ids[self.prompt_length :]

    @property
    def num_completion_tokens(self) -> int:
        """C."""
        return len(self.token_ids) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters as applied."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    repetition_penalty: float = 1.0
    max_tokens: int = 0
    """Of the whole completion."""
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SamplePayload:
    """All that an entry's payload holds."""

    sequences: tuple[Sequence, ...]
    sampling: Sampling
    row: int
    """Row of the prepared data set."""
    tokenizer_digest: str = ""
    """SHA-256 of the tokenizer's files, hexadecimal."""
    planned_tokens: int = 0
    """Predicted completion length; 0 where unknown."""
    actual_tokens: int = 0
    """Completion tokens of all sequences."""
    trace_context: str = ""
    """W3C traceparent."""
    started_at: float = 0.0
    """Unix seconds at which generation began, over all its parts."""
    finished_at: float = 0.0

    @property
    def oldest_version(self) -> int:
        """Smallest version of any segment: what the lag rule counts."""
        return min(segment.version for sequence in self.sequences for segment in sequence.segments)

    @property
    def newest_version(self) -> int:
        return max(segment.version for sequence in self.sequences for segment in sequence.segments)

    @property
    def reward(self) -> float:
        """Of the last sequence, which is the sample's answer."""
        return self.sequences[-1].reward


@dataclass(frozen=True, slots=True)
class Limits:
    """What a payload of a job may hold at most; checked before anything is allocated for it."""

    max_prompt_tokens: int
    max_response_tokens: int
    max_sequences: int = 1
    vocab_size: int | None = None
    """Token ids from here on are refused; None: not known here."""

    @property
    def max_payload_bytes(self) -> int:
        """Ids, mask, log-probabilities, 8 bytes of side tensors a token, segments, and a fixed rest."""
        tokens = self.max_prompt_tokens + self.max_response_tokens
        segments = min(self.max_response_tokens, _MAX_SEGMENTS) * _SEGMENT_BYTES
        return self.max_sequences * (12 * tokens + 5 * self.max_response_tokens + segments) + _FIXED_BYTES

    @classmethod
    def of(cls, job: ResolvedJob, *, vocab_size: int | None = None) -> "Limits":
        """The limits of a job."""
        data = job.spec.data
        return cls(data.max_prompt_tokens, data.max_response_tokens, vocab_size=vocab_size)
