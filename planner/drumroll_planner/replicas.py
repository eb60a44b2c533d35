"""What replicas do: join, leave, go silent, report, hand back. Pure: facts that follow from the state."""

from collections.abc import Iterable, Sequence

from drumroll_planner import records as r
from drumroll_planner.answers import HandedBack, SampleReport, Verdict, Verdicts
from drumroll_planner.clocks import Clocks
from drumroll_planner.facts import BAD_SAMPLES
from drumroll_planner.state import State
from drumroll_planner.tickets import Lease, Replica

_CHARGED = frozenset(
    {r.ReturnReason.BAD_SAMPLE, r.ReturnReason.REWARD_ERROR, r.ReturnReason.ENGINE_ERROR},
)
"""Reasons that prove that work was done; EXPIRED and REPLICA_LOST are charged where a heartbeat proved it."""


def joins(state: State, clocks: Clocks, replica: str, instance: str, slots: int) -> tuple[r.Record, ...]:
    """A replica registers; an older instance of its name is gone for good."""
    if state.banned.get(replica) == instance:
        return ()
    known = state.replicas.get(replica)
    if known is not None and known.instance == instance and known.slots == slots:
        return ()
    left = () if known is None else leaves(state, clocks, known, "replaced by a new instance")
    return (*left, r.ReplicaJoined(replica, instance, slots))


def leaves(state: State, clocks: Clocks, replica: Replica, reason: str) -> tuple[r.Record, ...]:
    """A replica is gone: its leases are lost."""
    lost = [
        _returned(state.leases[lease_id], r.ReturnReason.REPLICA_LOST, clocks.has_progress(lease_id), reason)
        for lease_id in replica.leases
    ]
    return (*lost, r.ReplicaLeft(replica.name, replica.instance, reason))


def attests(state: State, replica: Replica, version: int) -> list[r.Record]:
    """A replica holds other weights; under weights of an abandoned lineage its leases are worth nothing."""
    if version == replica.version or version not in state.announced:
        return []
    records: list[r.Record] = [r.Attested(replica.name, replica.instance, version)]
    if state.is_abandoned(version):
        detail = f"version {version} is of an abandoned lineage"
        held = [state.leases[lease_id] for lease_id in replica.leases]
        records += [_returned(lease, r.ReturnReason.ABORTED, False, detail) for lease in held]
    return records


def expiries(state: State, clocks: Clocks) -> list[r.Record]:
    """Silent and bad replicas leave; leases without progress for a term expire."""
    records: list[r.Record] = []
    gone: set[str] = set()
    for name in sorted(clocks.silent(state.replicas)):
        gone.add(name)
        records += leaves(state, clocks, state.replicas[name], "silent")
    for name in sorted(state.offenders - gone):
        gone.add(name)
        replica = state.replicas[name]
        records += leaves(state, clocks, replica, BAD_SAMPLES)
        message = f"replica {name} sent {replica.bad_in_a_row} bad samples in a row: out of service"
        records.append(r.Noted("ReplicaBadSamples", message))
    for lease_id in clocks.overdue(state.leases):
        lease = state.leases[lease_id]
        if lease.replica in gone:
            continue
        detail = f"no progress on replica {lease.replica} for {state.rules.lease_term_s:g} s"
        charged = clocks.acknowledged(lease_id)
        records.append(_returned(lease, r.ReturnReason.EXPIRED, charged, detail))
    return records


def _returned(
    lease: Lease, reason: r.ReturnReason, charged: bool, detail: str, partial: r.PartialRef | None = None
) -> r.Returned:
    return r.Returned(lease.lease_id, lease.ticket, lease.index, reason, charged, partial, detail)


def report(state: State, replica: str, instance: str, samples: Sequence[SampleReport]) -> Verdicts:
    """Accept answers under their current leases; a sample that cannot be what it says comes back as bad."""
    records: list[r.Record] = []
    verdicts: list[Verdict] = []
    seen: dict[str, SampleReport] = {}
    for sample in samples:
        refusal, record = _judge(state, replica, instance, sample, seen)
        seen.setdefault(sample.lease_id, sample)
        verdicts.append(Verdict(sample.lease_id, not refusal, refusal))
        if record is not None:
            records.append(record)
    return Verdicts(tuple(records), tuple(verdicts))


def _judge(
    state: State, replica: str, instance: str, sample: SampleReport, seen: dict[str, SampleReport]
) -> tuple[str, r.Record | None]:
    """(why not or "", the fact)."""
    if (before := seen.get(sample.lease_id)) is not None:
        return ("" if before == sample else "reported twice with different contents"), None
    lease = state.leases.get(sample.lease_id)
    if lease is None:
        return ("" if _was_accepted(state, sample) else "the lease is not current"), None
    if (lease.replica, lease.instance) != (replica, instance):
        return "the lease is another replica's", None
    if (lease.ticket, lease.index, lease.attempt) != (sample.ticket, sample.index, sample.attempt):
        return "the lease is for another sample", None
    if state.is_abandoned(sample.newest_version) or state.is_abandoned(sample.oldest_version):
        # Not the replica's fault: the job was rewound under it.
        trouble = f"versions {sample.oldest_version} to {sample.newest_version} are of an abandoned lineage"
        return trouble, _returned(lease, r.ReturnReason.ABORTED, False, trouble)
    if trouble := _version_trouble(state, lease, sample.oldest_version, sample.newest_version):
        return trouble, _returned(lease, r.ReturnReason.BAD_SAMPLE, True, trouble)
    return "", r.Accepted(
        lease_id=sample.lease_id,
        ticket=sample.ticket,
        index=sample.index,
        attempt=sample.attempt,
        entry_id=sample.entry_id,
        sha256=sample.sha256,
        num_bytes=sample.num_bytes,
        oldest_version=sample.oldest_version,
        newest_version=sample.newest_version,
        num_tokens=sample.num_tokens,
        reward=sample.reward,
        finished=sample.finished,
    )


def _version_trouble(state: State, lease: Lease, oldest: int, newest: int) -> str:
    """Why tokens of these versions cannot come from this lease; "" where they can."""
    partial = state.tickets[lease.ticket].samples[lease.index].partial
    floor = lease.version if partial is None else min(lease.version, partial.ref.oldest_version)
    if oldest < floor:
        return f"a token of version {oldest} is older than the lease's version {floor}"
    if newest < oldest or newest > max([lease.version, *state.announced]):
        return f"version {newest} was never announced"
    return f"version {oldest} is of an abandoned lineage" if state.is_abandoned(oldest) else ""


def _was_accepted(state: State, sample: SampleReport) -> bool:
    """Whether this very report was accepted before."""
    ticket = state.tickets.get(sample.ticket)
    step = state.decided_in.get(sample.ticket)
    if ticket is None and step is not None:
        ticket = state.steps[step].tickets[sample.ticket]
    if ticket is None or sample.index >= len(ticket.samples):
        return False
    accepted = ticket.samples[sample.index].accepted
    return accepted is not None and (accepted.lease_id, accepted.entry_id) == (sample.lease_id, sample.entry_id)


def hand_back(
    state: State, clocks: Clocks, replica: str, instance: str, samples: Sequence[HandedBack], leaving: bool
) -> Verdicts:
    """Take leases back, keep partials of current leases; a leaving replica's other leases are lost."""
    records: list[r.Record] = []
    verdicts: list[Verdict] = []
    returned: set[str] = set()
    for sample in samples:
        lease = state.leases.get(sample.lease_id)
        if lease is None or (lease.replica, lease.instance) != (replica, instance):
            verdicts.append(Verdict(sample.lease_id, False, "the lease is not current"))
            continue
        if sample.lease_id not in returned:
            returned.add(sample.lease_id)
            records += _hand_back_one(state, clocks, lease, sample)
        verdicts.append(Verdict(sample.lease_id, True, ""))
    known = state.replicas.get(replica)
    if leaving and known is not None and known.instance == instance:
        left = leaves(state, clocks, known, "left")
        records += [each for each in left if not isinstance(each, r.Returned) or each.lease_id not in returned]
    return Verdicts(tuple(records), tuple(verdicts))


def _hand_back_one(state: State, clocks: Clocks, lease: Lease, sample: HandedBack) -> Iterable[r.Record]:
    partial, detail = sample.partial, sample.detail
    if partial is not None:
        newest = max(partial.oldest_version, lease.version)
        trouble = _version_trouble(state, lease, partial.oldest_version, newest)
        if trouble:
            partial, detail = None, f"{detail} (partial refused: {trouble})".strip()
    lost = sample.reason in (r.ReturnReason.EXPIRED, r.ReturnReason.REPLICA_LOST)
    charged = sample.reason in _CHARGED or (lost and clocks.has_progress(lease.lease_id))
    yield _returned(lease, sample.reason, charged, detail, partial)
    held = state.tickets[lease.ticket].samples[lease.index].partial
    if sample.reason is r.ReturnReason.BAD_SAMPLE and partial is None and held is not None:
        # The bad tokens may be those that the replica was told to go on from.
        yield r.Discarded(lease.ticket, lease.index, "bad_sample", held.ref.num_tokens)
