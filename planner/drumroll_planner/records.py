"""The facts of the ledger, one frozen dataclass each.

Field names equal those of drumroll_proto.v1.journal; `drumroll_planner.codec` converts both ways. The scheduler
journals records first and applies them to the policy after that, so that a restarted scheduler that reads the
journal stands exactly where the old one stood.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class TicketId(NamedTuple):
    """One prompt in one pass: the pass, and the place in that pass's plan (not the row)."""

    epoch: int
    ordinal: int


class TicketEnd(StrEnum):
    """How a ticket ended; each admitted ticket ends exactly once on the final lineage."""

    COVERED = "covered"
    FILTERED = "filtered"
    DROPPED = "dropped"
    FAILED = "failed"
    SURPLUS = "surplus"


class LeaseKind(StrEnum):
    """What a lease is for; only TRAIN counts for the lag rule."""

    TRAIN = "train"
    EVAL = "eval"
    SCORE = "score"
    PROBE = "probe"


class ReturnReason(StrEnum):
    """Why a leased sample came back without being accepted."""

    DRAINED = "drained"
    EXPIRED = "expired"
    REPLICA_LOST = "replica_lost"
    BAD_SAMPLE = "bad_sample"
    REWARD_ERROR = "reward_error"
    ENGINE_ERROR = "engine_error"
    UNSTARTED = "unstarted"
    ABORTED = "aborted"


class JobOutcome(StrEnum):
    """How the job ended."""

    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobOpened:
    job_uid: str
    rules_digest: str
    data_digest: str
    num_prompts: int
    seed: int
    model_digest: str


@dataclass(frozen=True, slots=True)
class PassPlanned:
    epoch: int
    num_tickets: int
    plan_digest: str
    planner: str


@dataclass(frozen=True, slots=True)
class ReplicaJoined:
    replica: str
    instance: str
    slots: int


@dataclass(frozen=True, slots=True)
class ReplicaLeft:
    replica: str
    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class Attested:
    replica: str
    instance: str
    version: int


@dataclass(frozen=True, slots=True)
class Admitted:
    ticket: TicketId
    row: int
    predicted_tokens: int


@dataclass(frozen=True, slots=True)
class Leased:
    lease_id: str
    kind: LeaseKind
    ticket: TicketId
    index: int
    attempt: int
    replica: str
    instance: str
    version: int
    request_id: str


@dataclass(frozen=True, slots=True)
class PartialRef:
    """Tokens kept of an unfinished sample: an entry of kind `partial` in the sample stream."""

    entry_id: str
    sha256: bytes
    num_bytes: int
    num_tokens: int
    oldest_version: int


@dataclass(frozen=True, slots=True)
class Returned:
    lease_id: str
    ticket: TicketId
    index: int
    reason: ReturnReason
    charged: bool
    partial: PartialRef | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    lease_id: str
    ticket: TicketId
    index: int
    attempt: int
    entry_id: str
    sha256: bytes
    num_bytes: int
    oldest_version: int
    newest_version: int
    num_tokens: int
    reward: float
    finished: bool


@dataclass(frozen=True, slots=True)
class Discarded:
    ticket: TicketId
    index: int
    reason: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class DecidedSample:
    index: int
    attempt: int
    entry_id: str
    sha256: bytes
    oldest_version: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class DecidedTicket:
    ticket: TicketId
    row: int
    samples: tuple[DecidedSample, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    step: int
    version: int
    """The policy version that the trainer holds when it trains this step."""
    lineage: int
    tickets: tuple[DecidedTicket, ...]
    mask_below: int
    """No token of a version below this enters the loss."""
    chain: str
    """`records.chain_digest` of the step before and this decision."""


@dataclass(frozen=True, slots=True)
class Announced:
    version: int
    step: int
    lineage: int
    manifest_sha256: str
    weights_digest: str


@dataclass(frozen=True, slots=True)
class Trained:
    step: int
    version: int
    """The version that this step made."""
    chain: str
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Covered:
    step: int
    """Steps below this one are in the checkpoint."""
    version: int
    lineage: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class EndedTicket:
    ticket: TicketId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    end: TicketEnd
    reason: str
    tickets: tuple[EndedTicket, ...]


@dataclass(frozen=True, slots=True)
class TrainerRegistered:
    trainer_epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Pinned:
    holder: str
    version: int


@dataclass(frozen=True, slots=True)
class Unpinned:
    holder: str
    version: int


@dataclass(frozen=True, slots=True)
class LiveSet:
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Rewound:
    step: int
    version: int
    lineage: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayDiverged:
    version: int
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    outcome: JobOutcome
    reason: str


@dataclass(frozen=True, slots=True)
class Noted:
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The end of an evaluation round; its single samples are not journaled."""

    step: int
    """Steps that the version has behind it."""
    version: int
    lineage: int
    num_samples: int
    """Answers that were scored."""
    num_failed: int
    """Samples that failed as often as they may."""
    reward_mean: float
    """0 where no answer was scored; so are the two below."""
    reward_std: float
    response_length_mean: float
    """In tokens."""
    complete: bool
    """False: the round was ended before every sample had its end."""


Record = (
    JobOpened
    | PassPlanned
    | ReplicaJoined
    | ReplicaLeft
    | Attested
    | Admitted
    | Leased
    | Returned
    | Accepted
    | Discarded
    | Decided
    | Announced
    | Trained
    | Covered
    | Ended
    | TrainerRegistered
    | Pinned
    | Unpinned
    | LiveSet
    | Rewound
    | ReplayDiverged
    | JobEnded
    | Noted
    | Evaluated
)
