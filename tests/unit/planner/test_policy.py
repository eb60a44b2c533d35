"""Rules of the policy one by one."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest
from drumroll_planner.entries import ENTRY_BYTES, Entries
from drumroll_planner.plan import PassInputs
from drumroll_planner.planners import FifoPlanner, ShufflePlanner, build_planner
from drumroll_planner.policy import HandedBack, LeaseGrant, Policy, Rules, SampleReport
from drumroll_planner.world import World

from drumroll.errors import CorruptError, UserError


class Desk:
    """A policy with one thing done at a time."""

    def __init__(self, rules: Rules, replicas: Sequence[str] = ("r0",), slots: int = 8) -> None:
        self.policy = Policy(rules, incarnation=1)
        self.now = 0.0
        self.entries = 0
        self.calls = 0
        for name in replicas:
            self.do(self.policy.register_replica(0, name, f"{name}-a", slots))
        self.do(self.policy.register_trainer(0, 0, "", 0, 0))
        self.announce(0)
        self.plan()
        for name in replicas:
            self.attest(name, 0)

    def do(self, records: Sequence[r.Record]) -> tuple[r.Record, ...]:
        for record in records:
            self.policy.apply(record)
        return tuple(records)

    def plan(self) -> None:
        size = self.policy.rules.num_prompts
        while (epoch := self.policy.needs_plan()) is not None:
            inputs = PassInputs(epoch, size, 1, np.zeros(size, np.int32), np.full(size, np.nan, np.float32))
            self.do(self.policy.add_plan(FifoPlanner().plan(inputs)))

    def announce(self, version: int, lineage: int = 0) -> None:
        self.do(self.policy.announce(r.Announced(version, version, lineage, "m", "w"), None))

    def attest(self, name: str, version: int) -> None:
        held = dict.fromkeys(self.policy.state.replicas[name].leases, 0)
        self.do(self.policy.heartbeat(self.now, name, f"{name}-a", held, version, False).records)

    def lease(self, name: str, slots: int) -> tuple[LeaseGrant, ...]:
        self.calls += 1
        assert self.policy.ask(self.now, name, f"{name}-a", slots, f"q{self.calls}")
        assignment = self.policy.assign(self.now)
        self.do(assignment.records)
        self.policy.withdraw(name)
        return assignment.grants.get(name, ())

    def sample(self, grant: LeaseGrant, **changes: object) -> SampleReport:
        self.entries += 1
        sample = SampleReport(
            lease_id=grant.lease_id,
            ticket=grant.ticket,
            index=grant.index,
            attempt=grant.attempt,
            entry_id=f"{self.entries}-0",
            sha256=b"s" * 32,
            num_bytes=100,
            oldest_version=grant.version,
            newest_version=grant.version,
            num_tokens=10,
            reward=float(grant.index),
            finished=True,
        )
        return replace(sample, **changes)  # type: ignore[arg-type]

    def report(self, name: str, samples: Sequence[SampleReport]) -> list[bool]:
        verdicts = self.policy.report(self.now, name, f"{name}-a", samples)
        self.do(verdicts.records)
        return [verdict.accepted for verdict in verdicts.verdicts]

    def tick(self) -> list[r.Record]:
        all_records: list[r.Record] = []
        while records := self.policy.tick(self.now):
            all_records += self.do(records)
        return all_records

    def fill(self, name: str = "r0") -> r.Decided:
        """Generate until a step is decided."""
        for _ in range(20):
            grants = self.lease(name, 8)
            self.report(name, [self.sample(grant) for grant in grants])
            self.plan()
            for record in self.tick():
                if isinstance(record, r.Decided):
                    return record
        raise AssertionError("no step")


def test_a_lost_lease_reply_is_answered_again_for_its_request_id(rules: Rules) -> None:
    desk = Desk(rules)
    grants = desk.lease("r0", 3)
    assert desk.policy.granted("q1") == grants
    assert desk.policy.granted("other") == ()
    missing = desk.policy.heartbeat(1, "r0", "r0-a", {}, 0, False).missing
    assert missing == grants
    desk.report("r0", [desk.sample(grant) for grant in grants])
    assert desk.policy.granted("q1") == ()


def test_samples_go_to_the_least_loaded_replica_by_name_where_equal(rules: Rules) -> None:
    desk = Desk(rules, ("b", "a", "c"))
    for name in "abc":
        assert desk.policy.ask(0, name, f"{name}-a", 2, name)
    assignment = desk.policy.assign(0)
    leases = [record.replica for record in assignment.records if isinstance(record, r.Leased)]
    assert sorted(leases) == ["a", "a", "b", "b", "c", "c"]
    assert sorted(leases[:3]) == ["a", "b", "c"]
    assert leases[0] == "a"


def test_an_ask_of_no_slots_or_of_a_stranger_gets_nothing(rules: Rules) -> None:
    desk = Desk(rules)
    assert desk.policy.ask(0, "r0", "r0-a", 0, "q")
    assert not desk.policy.ask(0, "r0", "another", 4, "q")
    assert desk.policy.assign(0).grants == {}
    assert not desk.policy.heartbeat(0, "nobody", "x", {"1-1": 3}, None, False).known


def test_a_draining_replica_no_longer_waits(rules: Rules) -> None:
    desk = Desk(rules)
    desk.policy.ask(0, "r0", "r0-a", 4, "q")
    desk.policy.heartbeat(0, "r0", "r0-a", {}, 0, True)
    assert desk.policy.assign(0).grants == {}


def test_a_replica_that_is_too_old_is_told_to_update_first(rules: Rules) -> None:
    desk = Desk(replace(rules, max_policy_lag=0, target_policy_lag=0), ("r0", "r1"))
    decided = desk.fill()
    desk.announce(1)
    desk.do(desk.policy.trained(0, 1, decided.chain, {}))
    desk.policy.ask(0, "r0", "r0-a", 4, "q")
    assignment = desk.policy.assign(0)
    assert assignment.grants == {}
    assert assignment.update_first == {"r0"}
    desk.attest("r0", 1)
    assert desk.policy.assign(0).grants.keys() == {"r0"}


def test_a_repeated_report_is_accepted_again_and_a_stale_one_is_not(rules: Rules) -> None:
    desk = Desk(rules)
    first, second = desk.lease("r0", 2)
    sample = desk.sample(first)
    assert desk.report("r0", [sample]) == [True]
    assert desk.report("r0", [sample]) == [True]
    other = desk.sample(second)
    assert desk.report("r0", [other, other, replace(other, entry_id="9-9")]) == [True, True, False]
    assert desk.report("r0", [replace(sample, entry_id="8-8")]) == [False]
    assert desk.report("r0", [replace(sample, lease_id="1-77", index=7)]) == [False]


def test_a_report_must_be_of_the_leases_replica_and_sample(rules: Rules) -> None:
    desk = Desk(rules, ("r0", "r1"))
    (grant,) = desk.lease("r0", 1)
    assert desk.report("r1", [desk.sample(grant)]) == [False]
    assert desk.report("r0", [desk.sample(grant, index=1)]) == [False]
    assert desk.report("r0", [desk.sample(grant)]) == [True]


def test_a_repeated_report_of_a_decided_sample_is_accepted(rules: Rules) -> None:
    desk = Desk(rules)
    grants = desk.lease("r0", 8)
    samples = [desk.sample(grant) for grant in grants]
    desk.report("r0", samples)
    assert any(isinstance(record, r.Decided) for record in desk.tick())
    assert desk.report("r0", samples[:1]) == [True]


@pytest.mark.parametrize("changes", [{"oldest_version": -1}, {"newest_version": 5}])
def test_tokens_of_impossible_versions_come_back_as_bad(rules: Rules, changes: dict[str, int]) -> None:
    desk = Desk(rules)
    (grant,) = desk.lease("r0", 1)
    assert desk.report("r0", [desk.sample(grant, **changes)]) == [False]
    (again,) = desk.lease("r0", 1)
    assert (again.ticket, again.index, again.attempt) == (grant.ticket, grant.index, 1)


def test_v4_a_replica_of_only_bad_samples_is_taken_out_of_service(rules: Rules) -> None:
    desk = Desk(replace(rules, max_attempts=9), ("r0", "r1"))
    for _ in range(3):
        grants = desk.lease("r0", 2)
        back = [HandedBack(grants[0].lease_id, r.ReturnReason.BAD_SAMPLE, None, "NaN log-probability")]
        desk.do(desk.policy.hand_back(0, "r0", "r0-a", back, False).records)
        desk.do(desk.policy.hand_back(0, "r0", "r0-a", [], False).records)
    records = desk.tick()
    assert any(isinstance(record, r.ReplicaLeft) and record.reason == "bad_samples" for record in records)
    assert any(isinstance(record, r.Noted) and "r0" in record.message for record in records)
    assert desk.policy.is_banned("r0", "r0-a")
    assert desk.policy.register_replica(0, "r0", "r0-a", 4) == ()
    assert not desk.policy.heartbeat(0, "r0", "r0-a", {}, 0, False).known
    assert desk.policy.register_replica(0, "r0", "r0-b", 4) == (r.ReplicaJoined("r0", "r0-b", 4),)


def test_an_accepted_sample_ends_a_row_of_bad_ones(rules: Rules) -> None:
    desk = Desk(rules)
    first, second = desk.lease("r0", 2)
    desk.do(desk.policy.hand_back(0, "r0", "r0-a", [_bad(first)], False).records)
    assert desk.policy.state.replicas["r0"].bad_in_a_row == 1
    desk.report("r0", [desk.sample(second)])
    assert desk.policy.state.replicas["r0"].bad_in_a_row == 0


def _bad(grant: LeaseGrant) -> HandedBack:
    return HandedBack(grant.lease_id, r.ReturnReason.BAD_SAMPLE, None)


def test_attempts_are_charged_only_for_acknowledged_work(rules: Rules) -> None:
    desk = Desk(rules)
    grants = desk.lease("r0", 2)
    drained = [HandedBack(grants[0].lease_id, r.ReturnReason.DRAINED, None)]
    records = desk.do(desk.policy.hand_back(0, "r0", "r0-a", drained, True).records)
    assert [record.charged for record in records if isinstance(record, r.Returned)] == [False, False]
    desk.do(desk.policy.register_replica(0, "r0", "r0-a", 4))
    desk.attest("r0", 0)
    again = desk.lease("r0", 1)
    desk.policy.heartbeat(1, "r0", "r0-a", {again[0].lease_id: 5}, 0, False)
    desk.now = 50
    lost = [record for record in desk.tick() if isinstance(record, r.Returned)]
    assert [(record.reason, record.charged) for record in lost] == [(r.ReturnReason.REPLICA_LOST, True)]


def test_a_lease_is_renewed_by_progress_and_not_by_being_alive(rules: Rules) -> None:
    desk = Desk(rules)
    going, hung = desk.lease("r0", 2)
    for second in range(1, 20):
        desk.now = float(second)
        desk.policy.heartbeat(second, "r0", "r0-a", {going.lease_id: second, hung.lease_id: 3}, 0, False)
        desk.tick()
        if second == 12:
            assert hung.lease_id not in desk.policy.state.leases
    assert going.lease_id in desk.policy.state.leases
    assert desk.policy.heartbeat(20, "r0", "r0-a", {hung.lease_id: 3}, 0, False).abort == (hung.lease_id,)


def test_a_new_instance_of_a_replica_loses_the_leases_of_the_old(rules: Rules) -> None:
    desk = Desk(rules)
    grants = desk.lease("r0", 2)
    assert desk.policy.register_replica(1, "r0", "r0-a", 8) == ()
    records = desk.do(desk.policy.register_replica(1, "r0", "new", 4))
    assert [type(record) for record in records] == [r.Returned, r.Returned, r.ReplicaLeft, r.ReplicaJoined]
    stale = HandedBack(grants[0].lease_id, r.ReturnReason.DRAINED, None)
    assert not desk.policy.hand_back(1, "r0", "r0-a", [stale], False).verdicts[0].accepted


def partial(oldest: int = 0, tokens: int = 5, entry: str = "50-0") -> r.PartialRef:
    return r.PartialRef(entry, b"p" * 32, 60, tokens, oldest)


def test_a_partial_is_kept_over_returns_and_dropped_with_a_bad_sample(rules: Rules) -> None:
    desk = Desk(rules)
    (grant,) = desk.lease("r0", 1)
    back = [HandedBack(grant.lease_id, r.ReturnReason.DRAINED, partial())]
    desk.do(desk.policy.hand_back(0, "r0", "r0-a", [*back, *back], False).records)
    (grant,) = desk.lease("r0", 1)
    assert grant.partial == partial()
    desk.do(desk.policy.hand_back(0, "r0", "r0-a", [_bad(grant)], False).records)
    (grant,) = desk.lease("r0", 1)
    assert grant.partial is None
    assert desk.policy.releasable_entries()[0] == ("50-0",)
    desk.policy.entries_deleted(["50-0"])
    assert desk.policy.releasable_entries()[0] == ()


def test_a_partial_older_than_its_lease_is_refused(rules: Rules) -> None:
    desk = Desk(rules)
    (grant,) = desk.lease("r0", 1)
    back = HandedBack(grant.lease_id, r.ReturnReason.DRAINED, partial(oldest=-2))
    records = desk.do(desk.policy.hand_back(0, "r0", "r0-a", [back], False).records)
    assert isinstance(records[0], r.Returned)
    assert records[0].partial is None
    assert "partial refused" in records[0].detail


def test_too_many_failed_tickets_fail_the_job_with_the_reasons(rules: Rules) -> None:
    desk = Desk(replace(rules, max_attempts=1))
    for _ in range(2):
        grants = desk.lease("r0", 1)
        back = [HandedBack(grants[0].lease_id, r.ReturnReason.REWARD_ERROR, None, "division by zero")]
        desk.do(desk.policy.hand_back(0, "r0", "r0-a", back, False).records)
        desk.tick()
    outcome = desk.policy.outcome
    assert outcome is not None
    assert outcome.outcome is r.JobOutcome.FAILED
    assert "2 tickets failed, 1 may" in outcome.reason
    assert "division by zero" in outcome.reason
    assert desk.policy.next_step(0, "", ()).outcome == "failed"
    assert desk.policy.heartbeat(1, "r0", "r0-a", {"1-9": 1}, 0, False).abort == ("1-9",)
    assert desk.policy.assign(1).grants == {}
    assert desk.policy.needs_plan() is None


def test_decisions_are_given_again_and_commits_of_replayed_steps_change_nothing(rules: Rules) -> None:
    desk = Desk(rules)
    decided = desk.fill()
    assert desk.policy.next_step(0, "", ()).decision == decided
    assert decided.chain == chain_digest("", decided)
    assert desk.do(desk.policy.trained(0, 1, decided.chain, {"loss": 1.0}))
    assert desk.policy.trained(0, 1, decided.chain, {}) == ()
    assert desk.policy.trained(1, 2, "no such chain", {}) == ()
    assert desk.policy.next_step(0, "", ()).decision == decided
    assert desk.policy.next_step(1, decided.chain, ()).outcome == "wait"


def test_a_ledger_that_is_behind_adopts_what_the_trainer_knows(rules: Rules) -> None:
    desk, other = Desk(rules), Desk(rules)
    decided = desk.fill()
    assert other.policy.next_step(1, decided.chain, ()).outcome == "send_known"
    answer = other.policy.next_step(1, decided.chain, (decided,))
    assert answer.outcome == "wait"
    other.do(answer.records)
    assert other.policy.next_step(0, "", ()).decision == decided
    assert other.policy.state.counters["admitted"] == 4
    assert sorted(other.policy.state.entries.needed) == sorted(s.entry_id for t in decided.tickets for s in t.samples)


def test_conflicting_chains_rewind_to_the_checkpoint(rules: Rules) -> None:
    desk = Desk(rules)
    decided = desk.fill()
    answer = desk.policy.next_step(1, "another chain", ())
    assert answer.outcome == "rewind"
    desk.do(answer.records)
    assert answer.rewind == r.Rewound(0, 2, 1, answer.reason)
    assert desk.policy.state.counters["discarded_samples"] == 8
    # Asked again, it answers the same until the rewind's version is announced.
    assert desk.policy.next_step(1, decided.chain, ()).rewind == answer.rewind
    desk.announce(2, lineage=1)
    assert desk.policy.next_step(0, "", ()).outcome == "wait"
    desk.attest("r0", 2)
    assert desk.fill().version == 2


@pytest.mark.parametrize("fault", ["gap", "chain", "ended", "last"])
def test_decisions_that_do_not_continue_the_ledger_rewind_it(rules: Rules, fault: str) -> None:
    desk, other = Desk(rules), Desk(rules)
    decided = desk.fill()
    step, chain, known = 1, decided.chain, (decided,)
    if fault == "gap":
        step = 2
    elif fault == "chain":
        known = (replace(decided, version=3),)
    elif fault == "last":
        chain = "else"
    else:
        other.do([r.Admitted(decided.tickets[0].ticket, 0, 0)])
        other.do([r.Ended(r.TicketEnd.DROPPED, "", (r.EndedTicket(decided.tickets[0].ticket, 0),))])
    answer = other.policy.next_step(step, chain, known)
    assert answer.outcome == "rewind"
    assert answer.rewind is not None
    assert answer.rewind.lineage == 1


def test_a_trainer_of_another_history_is_told_so(rules: Rules) -> None:
    desk = Desk(rules)
    answer = desk.policy.next_step(0, "chain of nowhere", ())
    assert answer.outcome == "failed"
    assert "another history" in answer.reason


def test_a_trainer_behind_the_lineage_gets_the_rewind_until_it_announces(rules: Rules) -> None:
    desk = Desk(rules)
    desk.fill()
    rewound = desk.do(desk.policy.lost_samples(0, [(r.TicketId(0, n), 0) for n in range(7)]))[-1]
    assert isinstance(rewound, r.Rewound)
    assert "and 2 more" in rewound.reason
    assert desk.policy.lost_samples(0, [(r.TicketId(0, 1), 0)]) == ()
    assert desk.policy.lost_samples(0, []) == ()
    desk.announce(rewound.version, lineage=1)
    desk.do(desk.policy.register_trainer(1, 0, "", 0, 0))
    assert desk.policy.trainer_epoch == 2
    assert desk.policy.next_step(0, "", ()).rewind == rewound
    desk.announce(rewound.version, lineage=1)
    assert desk.policy.next_step(0, "", ()).outcome == "wait"


def test_a_ledger_that_lost_a_rewind_goes_beyond_the_trainers_version(rules: Rules) -> None:
    desk = Desk(rules)
    desk.do(desk.policy.register_trainer(1, 0, "", 30, 2))
    answer = desk.policy.next_step(0, "", ())
    assert answer.rewind is not None
    assert (answer.rewind.version, answer.rewind.lineage) == (31, 3)


def test_samples_and_partials_of_abandoned_versions_are_refused_or_discarded(rules: Rules) -> None:
    desk = Desk(rules, ("r0", "r1"))
    decided = desk.fill()
    desk.announce(1)
    desk.do(desk.policy.trained(0, 1, decided.chain, {}))
    (old,) = desk.lease("r1", 1)
    desk.attest("r0", 1)
    new, kept = desk.lease("r0", 2)
    desk.do(
        desk.policy.hand_back(
            0, "r0", "r0-a", [HandedBack(kept.lease_id, r.ReturnReason.DRAINED, partial(1))], False
        ).records
    )
    desk.do(desk.policy.lost_samples(0, [(r.TicketId(0, 0), 0)]))
    state = desk.policy.state
    assert new.lease_id not in state.leases
    assert old.lease_id in state.leases
    assert state.num_out == 1
    # The replica went on with weights that are void now.
    assert desk.report("r1", [desk.sample(old, newest_version=1)]) == [False]
    assert old.lease_id not in state.leases
    assert desk.lease("r0", 1) == ()


def test_attesting_an_abandoned_version_ends_the_leases(rules: Rules) -> None:
    desk = Desk(rules)
    decided = desk.fill()
    desk.announce(1)
    desk.do(desk.policy.trained(0, 1, decided.chain, {}))
    grants = desk.lease("r0", 1)
    desk.do(desk.policy.lost_samples(0, [(r.TicketId(0, 0), 0)]))
    answer = desk.policy.heartbeat(1, "r0", "r0-a", {grants[0].lease_id: 1}, 1, False)
    desk.do(answer.records)
    assert answer.abort == (grants[0].lease_id,)
    assert desk.policy.heartbeat(1, "r0", "r0-a", {}, 44, False).records == ()


def test_a_damaged_newest_checkpoint_goes_back_to_the_one_before(rules: Rules) -> None:
    world = World(rules, checkpoint_every=2)
    while world.policy.state.covered_step < 4:
        world.advance()
    world.trainer.kill(world, damaged=1)
    world.run()
    assert world.trainer.rewinds == 1
    desk = Desk(rules)
    answer = desk.policy.next_step(0, "", ())
    assert answer.outcome == "wait"


def test_a_stray_call_behind_the_coverage_turns_nothing_back(rules: Rules) -> None:
    world = World(rules, checkpoint_every=2)
    while world.policy.state.covered_step < 4:
        world.advance()
    chain = world.policy.state.chain_before(2)
    assert chain is not None
    answer = world.policy.next_step(2, chain, ())
    assert answer.outcome == "failed"
    assert "covered" in answer.reason


def test_versions_are_kept_by_pins_and_bound_and_forgotten_when_nothing_needs_them(rules: Rules) -> None:
    desk = Desk(replace(rules, keep_versions=1, steps=20))
    assert desk.policy.pin("r0", 7) == (False, ())
    granted, records = desk.policy.pin("r0", 0)
    assert granted
    desk.do(records)
    assert desk.policy.pin("r0", 0) == (True, ())
    for step in range(8):
        decided = desk.fill()
        desk.announce(step + 1)
        desk.do(desk.policy.trained(step, step + 1, decided.chain, {}))
        desk.attest("r0", step + 1)
        desk.do(desk.policy.covered(r.Covered(step + 1, step + 1, 0, "c")))
        if step == 3:
            assert 0 not in desk.policy.releasable()
            desk.do(desk.policy.unpin("r0", 0))
            assert desk.policy.unpin("r0", 0) == ()
            assert 0 in desk.policy.releasable()
            assert desk.policy.pin("r1", 0) == (False, ())
    assert 0 not in desk.policy.state.announced
    assert desk.policy.releasable() == (5,)
    assert desk.policy.covered(r.Covered(8, 8, 0, "c")) == ()
    assert desk.policy.covered(r.Covered(9, 9, 1, "c")) == ()


@pytest.mark.parametrize("end", ["silent", "replaced", "left"])
def test_what_a_dead_replica_had_pinned_is_kept_no_longer(rules: Rules, end: str) -> None:
    desk = Desk(replace(rules, keep_versions=1, max_policy_lag=0, target_policy_lag=0), replicas=("r0", "r1"))
    for holder in ("r0", "r1"):
        desk.do(desk.policy.pin(holder, 0)[1])
    desk.announce(1)
    match end:
        case "silent":
            desk.now = rules.lease_term_s
            desk.attest("r1", 0)
            desk.tick()
        case "replaced":
            desk.do(desk.policy.register_replica(desk.now, "r0", "r0-b", 8))
        case _:
            desk.do(desk.policy.hand_back(desk.now, "r0", "r0-a", (), True).records)
    assert desk.policy.state.pins == {("r1", 0)}


def test_replay_divergence_is_journaled(rules: Rules) -> None:
    desk = Desk(rules)
    diverged = r.ReplayDiverged(0, "a", "b")
    assert desk.policy.announce(r.Announced(0, 0, 0, "m", "w"), diverged) == (diverged,)
    desk.do([diverged])
    assert desk.policy.gauges()["replay_divergences_count"] == 1


def test_live_values_are_checked(rules: Rules) -> None:
    desk = Desk(rules)
    desk.do(desk.policy.set_live("steps", 3))
    desk.do(desk.policy.set_live("replicas", 0))
    desk.do(desk.policy.set_live("target_policy_lag", 2))
    assert desk.policy.state.num_steps == 3
    assert desk.policy.state.target_lag == 2
    for name, value in (("steps", 0), ("replicas", -1), ("target_policy_lag", 3), ("groupSize", 4)):
        with pytest.raises(UserError, match=name):
            desk.policy.set_live(name, value)
    with pytest.raises(UserError, match="epochs"):
        Policy(replace(rules, steps=None, epochs=1)).set_live("steps", 3)


def test_steps_cannot_be_added_once_the_trainer_may_have_been_told_that_all_are_done(rules: Rules) -> None:
    desk = Desk(replace(rules, steps=1))
    desk.fill()
    desk.do(desk.policy.set_live("steps", 2))
    desk.do(desk.policy.set_live("steps", 1))
    desk.do(desk.policy.trained(0, 1, desk.policy.state.chains[0], {}))
    with pytest.raises(UserError, match="the last step is trained already"):
        desk.policy.set_live("steps", 2)
    assert desk.policy.set_live("steps", 1) == (r.LiveSet("steps", 1),)


def test_the_next_pass_is_planned_before_the_last_ticket_of_this_one_goes_out(rules: Rules) -> None:
    policy = Policy(replace(rules, num_prompts=5))
    assert policy.needs_plan() == 0
    desk = Desk(replace(rules, num_prompts=5, group_size=1))
    assert [grant.ticket for grant in desk.lease("r0", 7)] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert desk.policy.needs_plan() == 1
    desk.plan()
    assert [grant.ticket for grant in desk.lease("r0", 3)] == [(0, 4), (1, 0), (1, 1)]


def test_a_plan_that_is_not_the_journaled_one_is_refused(rules: Rules) -> None:
    desk = Desk(rules)
    policy = Policy.from_snapshot(rules, desk.policy.snapshot(), incarnation=2)
    assert policy.needs_plan() == 0
    inputs = PassInputs(0, 12, 1, np.zeros(12, np.int32), np.full(0, np.nan, np.float32))
    with pytest.raises(CorruptError, match="epoch 0"):
        policy.add_plan(ShufflePlanner().plan(inputs))
    assert policy.add_plan(FifoPlanner().plan(inputs)) == ()


def test_snapshots_of_another_format_are_refused(rules: Rules) -> None:
    with pytest.raises(ValueError, match="format 7"):
        Policy.from_snapshot(rules, {"format": 7}, incarnation=1)


def test_replay_of_the_journal_from_any_cut_ends_in_the_same_state(rules: Rules) -> None:
    world = World(rules)
    for _ in range(40):
        world.advance()
    world.lose_stream()
    for _ in range(20):
        world.advance()
    policy = Policy(rules)
    for cut, record in enumerate(world.journal):
        policy.apply(record)
        if cut % 25 == 0:
            snapshot = json.loads(json.dumps(policy.snapshot()))
            again = Policy.from_snapshot(rules, snapshot, incarnation=cut)
            assert again.snapshot() == snapshot
            for later in world.journal[cut + 1 :]:
                again.apply(later)
            assert again.snapshot() == world.policy.snapshot()
    assert policy.snapshot() == world.policy.snapshot()


def test_every_lease_has_a_full_term_after_a_restart(rules: Rules) -> None:
    desk = Desk(rules)
    desk.lease("r0", 2)
    policy = Policy.from_snapshot(rules, desk.policy.snapshot(), incarnation=2)
    policy.restored(100)
    assert policy.tick(109) == ()
    assert policy.tick(111)


def test_back_pressure_holds_admission_and_asks_for_a_checkpoint(rules: Rules) -> None:
    step_bytes = 8 * (100 + ENTRY_BYTES)
    desk = Desk(replace(rules, max_stream_bytes=step_bytes * 5 // 4, max_policy_lag=4, target_policy_lag=4))
    desk.fill()
    assert desk.policy.checkpoint_wanted
    assert desk.policy.gauges()["stream_bytes"] == step_bytes
    # The next step may still be filled, but nothing beyond it.
    assert len(desk.lease("r0", 99)) == 8
    assert desk.lease("r0", 99) == ()


def test_the_stream_is_not_trimmed_behind_an_entry_that_a_live_lease_may_have_written(rules: Rules) -> None:
    desk = Desk(rules)
    first, second = desk.lease("r0", 2)
    assert desk.policy.releasable_entries() == ((), None)
    desk.entries = 10
    desk.report("r0", [desk.sample(first)])
    assert desk.policy.releasable_entries()[1] is None
    desk.report("r0", [desk.sample(second)])
    assert desk.policy.releasable_entries()[1] == "11-0"


def test_answer_lengths_are_remembered_by_row(rules: Rules) -> None:
    desk = Desk(rules)
    decided = desk.fill()
    history = desk.policy.length_history()
    rows = [member.row for member in decided.tickets]
    assert (history[rows] == 10).all()
    assert np.isnan(history).sum() == 12 - len(rows)


def test_plans_are_seeded_and_planners_known_by_name() -> None:
    inputs = PassInputs(3, 50, 9, np.zeros(50, np.int32), np.arange(50, dtype=np.float32))
    plan = build_planner("asp").plan(inputs)
    assert sorted(plan.rows) == list(range(50))
    assert plan.digest == ShufflePlanner().plan(inputs).digest != build_planner("fifo").plan(inputs).digest
    assert plan.predicted_tokens(4) == plan.row(4)
    assert plan.digest != ShufflePlanner().plan(replace(inputs, epoch=4)).digest
    with pytest.raises(ValueError, match="'best' is not known"):
        build_planner("best")


def test_a_resume_with_other_data_starts_the_next_pass_and_keeps_what_is_decided(rules: Rules) -> None:
    desk = Desk(rules)
    opened = r.JobOpened("uid", "rules", "data", 12, 7, "model")
    desk.do([opened])
    decided = desk.fill()
    desk.lease("r0", 3)
    desk.do([replace(opened, rules_digest="other rules", data_digest="other data")])
    assert desk.policy.state.leases == {}
    assert desk.policy.needs_plan() == 1
    desk.plan()
    assert desk.policy.next_step(0, "", ()).decision == decided
    assert {grant.ticket.epoch for grant in desk.lease("r0", 8)} == {0, 1}


def test_a_stream_entry_is_counted_once_and_until_it_is_deleted() -> None:
    entries = Entries()
    entries.need("5-0", 10)
    entries.need("5-0", 10)
    entries.release("5-0")
    entries.need("5-0", 10)
    entries.need("4-1", 3)
    assert (entries.num_bytes, entries.newest) == (13 + 2 * ENTRY_BYTES, "5-0")
    entries.release("4-1")
    entries.deleted("4-1")
    assert (entries.num_bytes, entries.released) == (10 + ENTRY_BYTES, {})


def test_a_checkpoint_of_steps_that_this_ledger_decided_otherwise_covers_nothing(rules: Rules) -> None:
    desk = Desk(rules)
    decided = desk.fill()
    desk.do(desk.policy.trained(0, 1, "a decision that the ledger lost", {}))
    assert desk.policy.covered(r.Covered(1, 1, 0, "c")) == ()
    assert desk.policy.next_step(1, "a decision that the ledger lost", ()).outcome == "rewind"
    desk.do(desk.policy.trained(0, 1, decided.chain, {}))
    assert desk.policy.covered(r.Covered(1, 1, 0, "c"))


def test_commits_that_a_ledger_lost_follow_from_the_next_question(rules: Rules) -> None:
    desk = Desk(rules)
    decided = desk.fill()
    answer = desk.policy.next_step(1, decided.chain, ())
    assert answer.records == (r.Trained(0, 1, decided.chain),)
    desk.do(answer.records)
    assert desk.policy.next_step(1, decided.chain, ()).records == ()


def test_the_first_replica_with_a_new_version_leaves_the_others_their_share(rules: Rules) -> None:
    wide = replace(rules, num_prompts=64, prompts_per_step=4, group_size=2, max_policy_lag=2, target_policy_lag=1)
    desk = Desk(wide, replicas=("r0", "r1"), slots=64)
    desk.announce(1)
    desk.attest("r0", 1)
    first = desk.lease("r0", 64)
    allowed = 2 * wide.prompts_per_step * wide.group_size
    assert allowed / 2 <= len(first) <= allowed / 2 + wide.group_size
    assert desk.lease("r0", 64) == ()
    desk.attest("r1", 1)
    second = desk.lease("r1", 64)
    assert len(first) + len(second) == allowed


def test_a_replica_that_never_loads_does_not_keep_a_step_from_forming(rules: Rules) -> None:
    desk = Desk(rules, replicas=("r0", "r1"))
    desk.announce(1)
    desk.attest("r0", 1)
    assert desk.fill("r0").step == 0
