"""What each fact does to the state. Total: any fact may come in any state, and replay ends where the run was."""

from collections.abc import Callable
from dataclasses import replace
from sys import intern
from typing import Any

from drumroll_planner import records as r
from drumroll_planner.entries import ENTRY_BYTES
from drumroll_planner.lineage import checkpoint_version, rewind_state
from drumroll_planner.records import TicketId
from drumroll_planner.retention import forget_retired
from drumroll_planner.state import State
from drumroll_planner.tickets import DecidedStep, Kept, Lease, Replica, Sample, Ticket, new_samples

BAD_SAMPLES = "bad_samples"
"""Reason of a ReplicaLeft that bars the instance."""

_SHOWN_FAILURES = 5


def apply(state: State, record: r.Record) -> None:
    """Change the state by one fact."""
    _FACTS[type(record)](state, record)


def _job_opened(state: State, record: r.JobOpened) -> None:
    before, state.opened = state.opened, record
    if before is None or before.rules_digest == record.rules_digest:
        return
    if (before.data_digest, before.seed) != (record.data_digest, record.seed):
        # The plans of the passes so far cannot be made again: the next pass begins.
        state.cursor = TicketId(max([*state.passes, state.cursor.epoch]) + 1, 0)
        state.passes.clear()
        state.ahead.clear()
    # Resumed under other rules: what is out starts again, in groups of the size that now holds.
    for ticket in state.tickets.values():
        state.unindex(ticket)
        ticket.row %= state.rules.num_prompts
        for sample in ticket.samples:
            clear_sample(state, sample)
        ticket.samples = new_samples(state.rules.group_size)
        ticket.completed_at = 0
        state.index(ticket)


def _pass_planned(state: State, record: r.PassPlanned) -> None:
    state.passes[record.epoch] = record
    for epoch in [epoch for epoch in state.passes if epoch < state.cursor.epoch - 1]:
        del state.passes[epoch]


def _replica_joined(state: State, record: r.ReplicaJoined) -> None:
    state.offenders.discard(record.replica)
    state.replicas[record.replica] = Replica(record.replica, record.instance, record.slots)


def _replica_left(state: State, record: r.ReplicaLeft) -> None:
    if record.reason == BAD_SAMPLES:
        state.banned[record.replica] = record.instance
    replica = state.replicas.get(record.replica)
    if replica is not None and replica.instance == record.instance:
        del state.replicas[record.replica]
        state.offenders.discard(record.replica)
        # Replicas pin under their names; what a dead one pinned would be kept for ever.
        state.pins = {pin for pin in state.pins if pin[0] != record.replica}


def _attested(state: State, record: r.Attested) -> None:
    replica = state.replicas.get(record.replica)
    if replica is not None and replica.instance == record.instance:
        replica.version = record.version


def _admitted(state: State, record: r.Admitted) -> None:
    state.counters["admitted"] += 1
    _admit(state, record.ticket, record.row, record.predicted_tokens)


def _admit(state: State, ticket_id: TicketId, row: int, predicted_tokens: int) -> Ticket:
    ticket = Ticket(ticket_id, row, predicted_tokens, new_samples(state.rules.group_size))
    state.tickets[ticket_id] = ticket
    state.index(ticket)
    if ticket_id >= state.cursor:
        state.ahead.add(ticket_id)
    while state.cursor in state.ahead:
        state.ahead.discard(state.cursor)
        epoch, ordinal = state.cursor
        last = ordinal + 1 >= state.pass_length(epoch)
        state.cursor = TicketId(epoch + 1, 0) if last else TicketId(epoch, ordinal + 1)
    return ticket


def _leased(state: State, record: r.Leased) -> None:
    with_sample(state, record.ticket, record.index, lambda ticket, sample: _lease(state, ticket, sample, record))


def _lease(state: State, ticket: Ticket, sample: Sample, record: r.Leased) -> None:
    """Names are shared among leases: a record read from the journal has its own copy of each."""
    state.counters["leased"] += 1
    sample.returned = False
    state.drop_lease(sample)
    lease = Lease(
        record.lease_id,
        record.kind,
        ticket.id,
        record.index,
        record.attempt,
        intern(record.replica),
        intern(record.instance),
        record.version,
        record.request_id,
        state.entries.newest,
    )
    state.add_lease(sample, lease)


def _returned(state: State, record: r.Returned) -> None:
    state.counters[f"returned_{record.reason}"] += 1
    lease = state.leases.get(record.lease_id)
    if lease is None:
        return
    replica = state.replicas.get(lease.replica)
    if record.reason is r.ReturnReason.BAD_SAMPLE and replica is not None and replica.instance == lease.instance:
        replica.bad_in_a_row += 1
        if replica.bad_in_a_row >= state.rules.max_bad_samples_in_a_row:
            state.offenders.add(replica.name)
    with_sample(state, record.ticket, record.index, lambda ticket, sample: _take_back(state, ticket, sample, record))


def _take_back(state: State, ticket: Ticket, sample: Sample, record: r.Returned) -> None:
    state.drop_lease(sample)
    sample.returned = True
    if record.charged:
        sample.attempts += 1
        ticket.trouble = f"{record.reason}: {record.detail}" if record.detail else str(record.reason)
    if record.partial is not None:
        _drop_partial(state, sample)
        sample.partial = Kept(record.partial, max(state.newest_version or 0, record.partial.oldest_version))
        state.entries.need(record.partial.entry_id, record.partial.num_bytes)


def _accepted(state: State, record: r.Accepted) -> None:
    lease = state.leases.get(record.lease_id)
    if lease is not None and (replica := state.replicas.get(lease.replica)) is not None:
        replica.bad_in_a_row = 0
        state.offenders.discard(replica.name)
    with_sample(state, record.ticket, record.index, lambda ticket, sample: _accept(state, ticket, sample, record))
    ticket = state.tickets.get(record.ticket)
    if ticket is not None and ticket.complete:
        state.completions += 1
        ticket.completed_at = state.completions
        if ticket.id in state.ready:
            state.filtered_in_a_row = 0


def _accept(state: State, ticket: Ticket, sample: Sample, record: r.Accepted) -> None:
    state.counters["accepted"] += 1
    state.counters["accepted_tokens"] += record.num_tokens
    state.counters["accepted_bytes"] += record.num_bytes + ENTRY_BYTES
    clear_sample(state, sample)
    # Equal, and one object for the whole group.
    sample.accepted = replace(record, ticket=ticket.id)
    state.entries.need(record.entry_id, record.num_bytes)


def _discarded(state: State, record: r.Discarded) -> None:
    state.counters["discarded_samples"] += 1
    state.counters["discarded_tokens"] += record.num_tokens
    with_sample(state, record.ticket, record.index, lambda ticket, sample: _discard(state, ticket, sample))


def _discard(state: State, ticket: Ticket, sample: Sample) -> None:
    if sample.accepted is not None:
        state.entries.release(sample.accepted.entry_id)
        sample.accepted = None
        sample.returned = True
        ticket.completed_at = 0
    else:
        _drop_partial(state, sample)


def _decided(state: State, record: r.Decided) -> None:
    step = DecidedStep(record, {})
    for member in record.tickets:
        ticket = state.tickets.get(member.ticket) or _admit(state, member.ticket, member.row, 0)
        del state.tickets[member.ticket]
        state.unindex(ticket)
        for chosen in member.samples:
            _settle(state, ticket, chosen)
        step.tickets[member.ticket] = ticket
        state.decided_in[member.ticket] = record.step
        state.counters["decided"] += 1
        tokens = [chosen.num_tokens for chosen in member.samples]
        if tokens and member.row < len(state.lengths):
            state.lengths[member.row] = sum(tokens) / len(tokens)
    state.steps[record.step] = step
    state.chains[record.step] = record.chain
    state.num_decided = record.step + 1
    state.prune_queue()


def _settle(state: State, ticket: Ticket, chosen: r.DecidedSample) -> None:
    """Make the ticket's sample the one that was decided (another one only where a ledger lost its tail)."""
    while len(ticket.samples) <= chosen.index:
        ticket.samples.append(Sample())
    sample = ticket.samples[chosen.index]
    if sample.accepted is not None and sample.accepted.entry_id == chosen.entry_id:
        return
    clear_sample(state, sample)
    sample.accepted = r.Accepted(
        lease_id="",
        ticket=ticket.id,
        index=chosen.index,
        attempt=chosen.attempt,
        entry_id=chosen.entry_id,
        sha256=chosen.sha256,
        num_bytes=0,
        oldest_version=chosen.oldest_version,
        newest_version=chosen.oldest_version,
        num_tokens=chosen.num_tokens,
        reward=0.0,
        finished=True,
    )
    state.entries.need(chosen.entry_id, 0)


def _announced(state: State, record: r.Announced) -> None:
    state.announced[record.version] = record


def _trained(state: State, record: r.Trained) -> None:
    state.num_trained = max(state.num_trained, record.step + 1)


def _covered(state: State, record: r.Covered) -> None:
    state.checkpoints = [*state.checkpoints, record][-state.rules.keep_checkpoints :]
    forget_retired(state)


def _ended(state: State, record: r.Ended) -> None:
    state.counters[f"ended_{record.end}"] += len(record.tickets)
    if record.end is r.TicketEnd.FILTERED:
        state.filtered_in_a_row += len(record.tickets)
    if record.end is r.TicketEnd.FAILED:
        state.failures = [*state.failures, record.reason][:_SHOWN_FAILURES]
    for member in record.tickets:
        if record.end is r.TicketEnd.COVERED:
            _cover(state, member.ticket)
        elif (ticket := state.tickets.pop(member.ticket, None)) is not None:
            state.unindex(ticket)
            for sample in ticket.samples:
                clear_sample(state, sample)


def _cover(state: State, ticket_id: TicketId) -> None:
    number = state.decided_in.pop(ticket_id, None)
    if number is None:
        return
    step = state.steps[number]
    for sample in step.tickets.pop(ticket_id).samples:
        clear_sample(state, sample)
    if not step.tickets:
        _retain(state, number)


def _retain(state: State, number: int) -> None:
    """Reduce a covered step to what a rewind behind the newest checkpoint needs, and forget older ones."""
    decision = state.steps.pop(number).decision
    state.covered_steps[number] = tuple((member.ticket, member.row) for member in decision.tickets)
    full = len(state.checkpoints) >= state.rules.keep_checkpoints
    oldest = state.checkpoints[0].step if full else 0
    for step in [step for step in state.covered_steps if step < oldest]:
        del state.covered_steps[step]
    for step in [step for step in state.chains if step < oldest - 1]:
        del state.chains[step]


def _trainer_registered(state: State, record: r.TrainerRegistered) -> None:
    state.trainer_epoch = record.trainer_epoch
    state.trainer_step = record.step


def _pinned(state: State, record: r.Pinned) -> None:
    state.pins.add((record.holder, record.version))


def _unpinned(state: State, record: r.Unpinned) -> None:
    state.pins.discard((record.holder, record.version))


def _live_set(state: State, record: r.LiveSet) -> None:
    state.live[record.name] = record.value


def _rewound(state: State, record: r.Rewound) -> None:
    state.counters["rewinds"] += 1
    kept = checkpoint_version(state, record.step)
    for ticket_id, ticket in rewind_state(state, record, kept):
        for sample in ticket.samples:
            clear_sample(state, sample)
        ticket.samples = new_samples(state.rules.group_size)
        for sample in ticket.samples:
            sample.returned = True
        ticket.completed_at = 0
        ticket.queued = None
        state.tickets[ticket_id] = ticket
        state.index(ticket)


def _replay_diverged(state: State, record: r.ReplayDiverged) -> None:
    state.counters["replay_divergences"] += 1


def _job_ended(state: State, record: r.JobEnded) -> None:
    state.outcome = record


def _noted(state: State, record: r.Noted) -> None:
    state.counters["notes"] += 1


def _evaluated(state: State, record: r.Evaluated) -> None:
    state.counters["evaluations"] += 1


def with_sample(state: State, ticket_id: TicketId, index: int, change: Callable[[Ticket, Sample], None]) -> None:
    """Change a sample of an undecided ticket with the indexes kept; facts about other tickets change nothing."""
    ticket = state.tickets.get(ticket_id)
    if ticket is None:
        return
    state.unindex(ticket)
    while len(ticket.samples) <= index:
        # A fact from before the group size was changed: the change comes later in the journal.
        ticket.samples.append(Sample())
    change(ticket, ticket.samples[index])
    state.index(ticket)


def clear_sample(state: State, sample: Sample) -> None:
    """Forget lease, partial and answer; their entries may be deleted."""
    state.drop_lease(sample)
    _drop_partial(state, sample)
    if sample.accepted is not None:
        state.entries.release(sample.accepted.entry_id)
        sample.accepted = None


def _drop_partial(state: State, sample: Sample) -> None:
    if sample.partial is not None:
        state.entries.release(sample.partial.ref.entry_id)
        sample.partial = None


_FACTS: dict[type, Callable[[State, Any], None]] = {
    r.JobOpened: _job_opened,
    r.PassPlanned: _pass_planned,
    r.ReplicaJoined: _replica_joined,
    r.ReplicaLeft: _replica_left,
    r.Attested: _attested,
    r.Admitted: _admitted,
    r.Leased: _leased,
    r.Returned: _returned,
    r.Accepted: _accepted,
    r.Discarded: _discarded,
    r.Decided: _decided,
    r.Announced: _announced,
    r.Trained: _trained,
    r.Covered: _covered,
    r.Ended: _ended,
    r.TrainerRegistered: _trainer_registered,
    r.Pinned: _pinned,
    r.Unpinned: _unpinned,
    r.LiveSet: _live_set,
    r.Rewound: _rewound,
    r.ReplayDiverged: _replay_diverged,
    r.JobEnded: _job_ended,
    r.Noted: _noted,
    r.Evaluated: _evaluated,
}
