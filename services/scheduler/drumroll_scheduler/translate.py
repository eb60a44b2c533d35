"""Between the wire and the policy's types. Unknown values are refused by the name of their field."""

import math
import re
from collections.abc import Iterable

from drumroll_planner import policy as p
from drumroll_planner import records as r
from drumroll_planner.codec import from_proto, to_proto
from drumroll_proto.v1 import common_pb2, journal_pb2, scheduler_pb2

from drumroll.errors import ProtocolError
from drumroll.rpc import PROTOCOL_VERSION

_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_LEASE_KINDS = {
    r.LeaseKind.TRAIN: common_pb2.LEASE_KIND_TRAIN,
    r.LeaseKind.EVAL: common_pb2.LEASE_KIND_EVAL,
    r.LeaseKind.SCORE: common_pb2.LEASE_KIND_SCORE,
    r.LeaseKind.PROBE: common_pb2.LEASE_KIND_PROBE,
}
_RETURN_REASONS = {journal_pb2.ReturnReason.Value(f"RETURN_REASON_{reason.name}"): reason for reason in r.ReturnReason}


def agree_protocol(request: scheduler_pb2.RegisterRequest) -> int:
    """The protocol version for a caller that speaks min_protocol to max_protocol."""
    if not request.min_protocol <= PROTOCOL_VERSION <= request.max_protocol:
        raise ProtocolError(
            f"the caller speaks protocol versions {request.min_protocol} to {request.max_protocol}, "
            f"this scheduler speaks {PROTOCOL_VERSION}"
        )
    return PROTOCOL_VERSION


def role(request: scheduler_pb2.RegisterRequest) -> str:
    """`rollout` or `trainer`."""
    if request.role == scheduler_pb2.ROLE_ROLLOUT:
        return "rollout"
    if request.role == scheduler_pb2.ROLE_TRAINER:
        return "trainer"
    raise ProtocolError(f"role has the unknown value {request.role}")


def replica(message: common_pb2.ReplicaId) -> tuple[str, str]:
    """Name and instance of a replica."""
    if not message.name or not message.instance:
        raise ProtocolError(f"replica needs a name and an instance, not {message.name!r} and {message.instance!r}")
    return message.name, message.instance


def ticket(message: common_pb2.TicketId) -> r.TicketId:
    return r.TicketId(message.epoch, message.ordinal)


def _entry(field: str, entry_id: str, sha256: bytes) -> None:
    if not _ENTRY_ID.fullmatch(entry_id):
        raise ProtocolError(f"{field}.entry_id is {entry_id!r}, not an id of a stream entry")
    if len(sha256) != 32:
        raise ProtocolError(f"{field}.sha256 has {len(sha256)} bytes, not 32")


def sample_report(message: scheduler_pb2.SampleReport) -> p.SampleReport:
    """A reported sample."""
    _entry("samples.entry", message.entry.entry_id, message.entry.sha256)
    if not math.isfinite(message.reward):
        raise ProtocolError(f"samples.reward is {message.reward}, not a finite number")
    if message.oldest_version > message.newest_version:
        raise ProtocolError(
            f"samples.oldest_version {message.oldest_version} is above newest_version {message.newest_version}"
        )
    return p.SampleReport(
        lease_id=message.lease_id,
        ticket=ticket(message.sample.ticket),
        index=message.sample.index,
        attempt=message.sample.attempt,
        entry_id=message.entry.entry_id,
        sha256=message.entry.sha256,
        num_bytes=message.entry.num_bytes,
        oldest_version=message.oldest_version,
        newest_version=message.newest_version,
        num_tokens=message.num_tokens,
        reward=message.reward,
        finished=message.finished,
    )


def handed_back(message: scheduler_pb2.HandedBack) -> p.HandedBack:
    """A lease that is handed back."""
    reason = _RETURN_REASONS.get(message.reason)
    if reason is None:
        raise ProtocolError(f"samples.reason has the unknown value {message.reason}")
    partial = None
    if message.HasField("partial"):
        part = message.partial
        _entry("samples.partial", part.entry_id, part.sha256)
        partial = r.PartialRef(part.entry_id, part.sha256, part.num_bytes, part.num_tokens, part.oldest_version)
    return p.HandedBack(message.lease_id, reason, partial, message.detail)


def lease_grant(grant: p.LeaseGrant) -> scheduler_pb2.LeaseGrant:
    """A lease as the replica is told of it."""
    slot = scheduler_pb2.SampleSlot(index=grant.index, attempt=grant.attempt)
    if grant.partial is not None:
        part = grant.partial
        slot.partial.CopyFrom(common_pb2.EntryRef(entry_id=part.entry_id, sha256=part.sha256, num_bytes=part.num_bytes))
    constraint = None
    if grant.held_until is not None:
        constraint = scheduler_pb2.VersionConstraint(exactly=True, version=grant.version, until=grant.held_until)
    return scheduler_pb2.LeaseGrant(
        lease_id=grant.lease_id,
        kind=_LEASE_KINDS[grant.kind],
        task=grant.kind.value,
        constraint=constraint,
        ticket=common_pb2.TicketId(epoch=grant.ticket.epoch, ordinal=grant.ticket.ordinal),
        row=grant.row,
        samples=[slot],
        predicted_tokens=grant.predicted_tokens,
        version=grant.version,
    )


def verdicts(items: Iterable[p.Verdict]) -> list[scheduler_pb2.Verdict]:
    return [scheduler_pb2.Verdict(lease_id=v.lease_id, accepted=v.accepted, reason=v.reason) for v in items]


def weights(announced: r.Announced | None) -> scheduler_pb2.AnnouncedWeights:
    """The newest announced version, or its absence."""
    if announced is None:
        return scheduler_pb2.AnnouncedWeights()
    return scheduler_pb2.AnnouncedWeights(
        present=True,
        version=announced.version,
        manifest_sha256=announced.manifest_sha256,
        lineage=announced.lineage,
    )


def decided(message: journal_pb2.Decided) -> r.Decided:
    record = from_proto(journal_pb2.JournalRecord(decided=message))
    assert isinstance(record, r.Decided)
    return record


def covered(message: journal_pb2.Covered) -> r.Covered:
    return r.Covered(message.step, message.version, message.lineage, message.checkpoint)


def announced(message: journal_pb2.Announced) -> r.Announced:
    return r.Announced(message.version, message.step, message.lineage, message.manifest_sha256, message.weights_digest)


def diverged(message: scheduler_pb2.AnnounceRequest) -> r.ReplayDiverged | None:
    if not message.HasField("diverged"):
        return None
    return r.ReplayDiverged(message.diverged.version, message.diverged.expected, message.diverged.actual)


_OUTCOMES = {
    "decided": scheduler_pb2.NEXT_STEP_OUTCOME_DECIDED,
    "wait": scheduler_pb2.NEXT_STEP_OUTCOME_WAIT,
    "finished": scheduler_pb2.NEXT_STEP_OUTCOME_FINISHED,
    "send_known": scheduler_pb2.NEXT_STEP_OUTCOME_SEND_KNOWN,
    "rewind": scheduler_pb2.NEXT_STEP_OUTCOME_REWIND,
    "failed": scheduler_pb2.NEXT_STEP_OUTCOME_FAILED,
}


def step_answer(answer: p.StepAnswer) -> scheduler_pb2.NextStepReply:
    """The answer to a next-step call, without what every such reply carries besides."""
    reply = scheduler_pb2.NextStepReply(outcome=_OUTCOMES[answer.outcome], reason=answer.reason)
    if answer.decision is not None:
        reply.decision.CopyFrom(to_proto(answer.decision, time=0.0, incarnation=0).decided)
    if answer.rewind is not None:
        reply.rewind.CopyFrom(to_proto(answer.rewind, time=0.0, incarnation=0).rewound)
    return reply
