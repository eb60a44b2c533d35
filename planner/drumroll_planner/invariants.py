"""Watches a policy fact by fact for broken invariants of the protocol; for tests and simulations.

A watch of a `World`: it raises AssertionError at the first fact that must not have come.
"""

from collections.abc import Callable

from drumroll_planner import records as r
from drumroll_planner import snapshot as snapshots
from drumroll_planner.lag import violations
from drumroll_planner.policy import Policy
from drumroll_planner.state import State


class InvariantWatch:
    """`exact`: also compare the indexes with ones made anew, after every fact (slow)."""

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._lease_ids: set[str] = set()
        self._versions: set[int] = set()
        self._ended: set[r.TicketId] = set()
        self._adopted: set[int] = set()
        """Steps that a ledger which lost its tail takes over from the trainer: decided by other facts."""

    def __call__(self, policy: Policy, record: r.Record, apply: Callable[[], None]) -> None:
        state = policy.state
        broken = set(violations(state.window, state.out))
        aged = isinstance(record, r.Leased) and ages(state, record)
        adopted = self._adopted & {record.step if isinstance(record, r.Decided) else -1}
        self._before(state, record)
        apply()
        if isinstance(record, r.Leased):
            fresh = set(violations(state.window, state.out)) - broken
            assert not fresh, f"{record} breaks rule (b) at versions {sorted(fresh)}"
            stale = max(0, (state.newest_version or 0) - record.version)
            within = not aged or state.num_out + stale * state.window.per_step <= state.window.credit
            assert within, f"{record}, {stale} behind, breaks rule (c): {state.num_out} out of {state.window.credit}"
        elif isinstance(record, r.Decided) and state.rules.lag_policy == "wait" and not broken | adopted:
            left = violations(state.window, state.out)
            assert not left, f"deciding step {record.step} breaks rule (b) at versions {left}"
        if self._exact:
            compare_indexes(state)

    def _before(self, state: State, record: r.Record) -> None:
        match record:
            case r.Admitted():
                held = state.places > 0 and not state.is_admitted(record.ticket)
                assert held, f"{record} has no place, or comes twice"
            case r.Leased():
                self._leased(state, record)
            case r.Accepted() | r.Returned():
                lease = state.leases.get(record.lease_id)
                held = lease is not None and (lease.ticket, lease.index) == (record.ticket, record.index)
                assert held, f"{record} is of no live lease"
            case r.Decided():
                self._decided(state, record)
            case r.Ended():
                self._end(record)
            case r.Announced():
                assert record.version not in self._versions, f"{record} uses its version again"
                self._versions.add(record.version)
            case r.Rewound():
                self._rewound(state, record)
            case r.Noted(reason="DecisionAdopted"):
                self._adopted.add(int(record.message))
            case _:
                pass

    def _rewound(self, state: State, record: r.Rewound) -> None:
        assert record.version > max(state.filling, *self._versions), f"{record} uses its version again"
        for number, members in state.covered_steps.items():
            if number >= record.step:
                self._ended -= {ticket for ticket, _ in members}
        for number, step in state.steps.items():
            if number >= record.step:
                self._ended -= {member.ticket for member in step.decision.tickets}

    def _leased(self, state: State, record: r.Leased) -> None:
        sample = state.tickets[record.ticket].samples[record.index]
        assert sample.waits, f"{record}: the sample is leased or accepted already"
        assert record.lease_id not in self._lease_ids, f"{record} uses its id again"
        self._lease_ids.add(record.lease_id)
        assert record.version >= state.window.floor, f"{record} is below k - bound = {state.window.floor}"
        assert not state.is_abandoned(record.version), f"{record} is of an abandoned version"
        replica = state.replicas[record.replica]
        assert (replica.instance, replica.version) == (record.instance, record.version), f"{record} is not attested"

    def _decided(self, state: State, record: r.Decided) -> None:
        assert record.step == state.num_decided, f"step {record.step} comes after {state.num_decided - 1}"
        if record.step in self._adopted:
            self._adopted.discard(record.step)
            return
        assert record.step <= state.trained_through + 1, f"step {record.step} is more than one ahead"
        floor = record.version - state.rules.max_policy_lag
        assert record.mask_below == max(0, floor)
        for member in record.tickets:
            assert member.ticket not in state.decided_in, f"{member.ticket} is decided twice"
            assert member.ticket not in self._ended, f"{member.ticket} is decided after its end"
            for sample in member.samples:
                fresh = sample.oldest_version >= floor or state.rules.lag_policy == "mask"
                assert fresh, f"{member.ticket} in step {record.step}: {sample.oldest_version} < {floor}"
                assert not state.is_abandoned(sample.oldest_version), f"{member.ticket} holds an abandoned version"

    def _end(self, record: r.Ended) -> None:
        for member in record.tickets:
            assert member.ticket not in self._ended, f"{member.ticket} ends twice"
            self._ended.add(member.ticket)

    def forget(self, policy: Policy) -> None:
        """The ledger lost its tail: what it no longer knows may come again, but for lease ids."""
        state = policy.state
        self._versions = set(state.announced)
        known = state.tickets.keys() | state.decided_in.keys()
        self._ended = {ticket for ticket in self._ended if state.is_admitted(ticket) and ticket not in known}


def ages(state: State, lease: r.Leased) -> bool:
    """Whether rule (c) has a say in a lease: its ticket begins, or gets an older version than the newest by it."""
    version = state.tickets[lease.ticket].version
    newest = state.newest_version or 0
    return version is None or newest > lease.version < version


def compare_indexes(state: State) -> None:
    """Indexes that were kept up fact by fact equal those made anew from a snapshot."""
    again = snapshots.restore(state.rules, snapshots.snapshot(state))
    for name in (
        "out",
        "incomplete",
        "num_out",
        "ready",
        "equal",
        "exhausted",
        "awaited_tokens",
        "awaited_unknown",
        "offenders",
    ):
        assert getattr(state, name) == getattr(again, name), name
    assert state.decided_in == again.decided_in
    assert state.by_request == again.by_request
    assert state.entries.needed == again.entries.needed
    assert state.entries.num_bytes == sum(state.entries.needed.values()) + sum(state.entries.released.values())
    for name, replica in state.replicas.items():
        assert replica.leases.keys() == again.replicas[name].leases.keys(), name
    _compare_queues(state, again)


def _compare_queues(state: State, again: State) -> None:
    for bucket in state.pending.keys() | again.pending.keys():
        kept, made = state.queue_head(bucket), again.queue_head(bucket)
        assert (kept and kept[0]) == (made and made[0]), f"queue of version {bucket}"
