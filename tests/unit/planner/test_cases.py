"""Real faults of comparable systems, as far as the policy answers them."""

from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest
from drumroll_planner import records as r
from drumroll_planner.audit import AuditReport
from drumroll_planner.invariants import InvariantWatch
from drumroll_planner.policy import Rules
from drumroll_planner.world import World
from drumroll_planner.world_replica import Running, SimReplica


def trained_tickets(world: World) -> list[r.TicketId]:
    return [ticket for _, tickets, _ in world.steps for ticket in tickets]


class Stuck(SimReplica):
    """Acknowledges one row's leases and never makes a token of them, the first `times` times."""

    def __init__(self, name: str, slots: int, row: int, times: int) -> None:
        super().__init__(name, 0, slots)
        self.row = row
        self.left = times
        self._stuck: set[str] = set()

    def _generate(self, world: World) -> None:
        stuck: dict[str, Running] = {}
        for lease_id, running in self.running.items():
            if running.grant.row == self.row and (self.left > 0 or lease_id in self._stuck):
                self.left -= lease_id not in self._stuck
                self._stuck.add(lease_id)
                stuck[lease_id] = running
        going = {lease_id: running for lease_id, running in self.running.items() if lease_id not in stuck}
        self.running = going
        super()._generate(world)
        self.running = {**going, **stuck}


def stuck_world(rules: Rules, times: int) -> World:
    rules = replace(rules, group_size=1, lease_term_s=5.0, steps=None, epochs=1, num_prompts=8)
    world = World(rules, replicas=0, watch=InvariantWatch())
    world.replicas = {"rollout-0": Stuck("rollout-0", 4, 5, times)}
    return world


def test_a2_a_prompt_that_hangs_once_is_leased_again_within_two_terms_and_trained(rules: Rules) -> None:
    world = stuck_world(rules, 1)
    while not (leases := [x for x in world.journal if isinstance(x, r.Leased) and x.ticket == (0, 5)]):
        world.advance()
    began = world.now
    while len(leases) < 2:
        world.advance()
        leases = [x for x in world.journal if isinstance(x, r.Leased) and x.ticket == (0, 5)]
    assert world.now - began <= 2 * 5
    assert leases[1].attempt == 1
    world.run()
    assert sorted(trained_tickets(world)) == [(0, ordinal) for ordinal in range(8)]


def test_a2_a_prompt_that_never_finishes_fails_after_its_tries_and_all_others_train(
    rules: Rules, audited: Callable[[World], AuditReport]
) -> None:
    world = stuck_world(rules, 99)
    assert world.run().outcome is r.JobOutcome.COMPLETE
    failed = [x for x in world.journal if isinstance(x, r.Ended) and x.end is r.TicketEnd.FAILED]
    assert len(failed) == 1
    assert "ticket (0, 5)" in failed[0].reason
    assert "rollout-0" in failed[0].reason
    assert sorted(trained_tickets(world)) == [(0, ordinal) for ordinal in range(8) if ordinal != 5]
    assert audited(world).ok


def test_a4_a_job_whose_groups_are_all_equal_stops_after_its_tries_with_the_count(rules: Rules) -> None:
    rules = replace(rules, dynamic_sampling=True, max_sampling_tries=10, prompts_per_step=4)
    world = World(rules, reward=lambda row, index: 1.0, watch=InvariantWatch())
    end = world.run()
    assert end.outcome is r.JobOutcome.FAILED
    assert "40 of 40 groups had equal rewards" in end.reason


def test_a4_rare_varied_groups_fill_whole_steps_and_the_rest_is_accounted(
    rules: Rules, audited: Callable[[World], AuditReport]
) -> None:
    rules = replace(rules, dynamic_sampling=True, num_prompts=30, prompts_per_step=4, steps=3, max_sampling_tries=20)
    world = World(rules, reward=lambda row, index: float(index % 2) if row % 10 == 0 else 1.0, watch=InvariantWatch())
    assert world.run().outcome is r.JobOutcome.COMPLETE
    assert [len(tickets) for _, tickets, _ in world.steps] == [4, 4, 4]
    report = audited(world)
    assert report.ok
    assert report.counts["filtered"] > 20
    assert world.policy.gauges()["tickets_ended_filtered"] == report.counts["filtered"]


def long_tail(row: int, index: int) -> int:
    return 60 if row in (3, 7) else 6


def running_rows(world: World) -> set[int]:
    return {running.grant.row for replica in world.replicas.values() for running in replica.running.values()}


def trained_once(world: World, report: AuditReport) -> set[r.TicketId]:
    """The trained tickets, after checking that each of the twelve has its one end."""
    assert report.ok
    assert report.counts["admitted"] == report.counts["covered"] + report.counts["dropped"] == 12
    trained = trained_tickets(world)
    assert len(trained) == len(set(trained)) == report.counts["covered"]
    return set(trained)


@pytest.mark.parametrize("seconds", [8, 14, 20])
def test_a6_a_trainer_killed_while_long_tickets_are_in_flight_loses_none_of_them(
    rules: Rules, seconds: int, audited: Callable[[World], AuditReport]
) -> None:
    rules = replace(rules, max_policy_lag=4, prompts_per_step=2, steps=None, epochs=1)
    world = World(rules, length=long_tail, slots=8, watch=InvariantWatch(), checkpoint_every=3)
    for _ in range(seconds):
        world.advance()
    assert running_rows(world) & {3, 7}
    world.trainer.kill(world)
    assert world.run().outcome is r.JobOutcome.COMPLETE
    trained = trained_once(world, audited(world))
    assert {(0, 3), (0, 7)} <= trained
    assert mean(long_tail(ticket.ordinal, 0) for ticket in trained) == mean(long_tail(row, 0) for row in range(12))


def test_a6_under_drop_a_ticket_dropped_before_the_kill_is_counted_once(
    rules: Rules, audited: Callable[[World], AuditReport]
) -> None:
    rules = replace(rules, max_policy_lag=1, prompts_per_step=2, steps=None, epochs=1, lag_policy="drop")
    world = World(rules, length=long_tail, slots=8, watch=InvariantWatch(), checkpoint_every=3)
    while not world.policy.state.counters["ended_dropped"]:
        world.advance()
    assert world.policy.state.steps
    world.trainer.kill(world)
    assert world.run().outcome is r.JobOutcome.COMPLETE
    report = audited(world)
    assert len(trained_once(world, report)) == 12 - report.counts["dropped"]
    assert report.counts["dropped"] >= 1


def test_v8_the_lag_of_a_continued_sample_is_counted_from_its_first_part(rules: Rules) -> None:
    world = World(replace(rules, max_policy_lag=4), replicas=1, slots=1, length=lambda row, index: 24)
    while world.policy.state.trained_through < 1:
        world.advance()
    replica = world.replicas["rollout-0"]
    while not (replica.running and next(iter(replica.running.values())).done):
        world.advance()
    first = next(iter(replica.running.values()))
    oldest = first.oldest
    replica.hand_back(world, leaving=True)
    ticket = world.policy.state.tickets[first.grant.ticket]
    assert ticket.version == oldest
    world.add_replica("rollout-1")
    weights = r.Announced(99, 99, 0, "manifest", "weights")
    world.commit(world.policy.announce(weights, None))
    while not world.replicas["rollout-1"].running:
        world.advance()
    second = next(iter(world.replicas["rollout-1"].running.values()))
    assert second.grant.ticket == first.grant.ticket
    assert second.grant.partial is not None
    assert second.grant.version == 99
    assert world.policy.state.tickets[first.grant.ticket].version == oldest


@pytest.mark.parametrize("group_size", [1, 3])
def test_lag_zero_with_one_replica_is_the_plain_synchronous_loop(rules: Rules, group_size: int) -> None:
    rules = replace(rules, max_policy_lag=0, target_policy_lag=0, group_size=group_size, num_prompts=10, steps=7)
    world = World(rules, replicas=1, slots=3, watch=InvariantWatch())
    world.run()
    expected, stream = [], [r.TicketId(epoch, ordinal) for epoch in range(3) for ordinal in range(10)]
    for step in range(7):
        batch, stream = stream[:4], stream[4:]
        expected.append((step, frozenset(batch), step))
    assert world.steps == expected
    oldest = {
        s.oldest_version - x.version
        for x in world.journal
        if isinstance(x, r.Decided)
        for t in x.tickets
        for s in t.samples
    }
    assert oldest == {0}
