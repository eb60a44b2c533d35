"""Evaluation rounds: one live lease a sample, every round ends, whatever replicas do."""

from dataclasses import replace
from typing import Any

import pytest
from drumroll_planner import records as r
from drumroll_planner.answers import HandedBack, LeaseGrant, SampleReport
from drumroll_planner.evaluation import HOLDER, NOTHING, EvalRounds, EvalRules, is_evaluation
from drumroll_planner.policy import Policy, Rules
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

EVAL = EvalRules(
    num_prompts=3,
    samples_per_prompt=2,
    every_steps=2,
    max_attempts=2,
    lease_term_s=10.0,
    round_limit_s=100.0,
    end_limit_s=50.0,
)
POLICY = Rules(
    num_prompts=12,
    group_size=2,
    prompts_per_step=4,
    max_policy_lag=2,
    target_policy_lag=1,
    lag_policy="wait",
    steps=8,
    epochs=None,
    max_attempts=3,
    max_failed_tickets=0.01,
    lease_term_s=10.0,
    dynamic_sampling=False,
    max_sampling_tries=10,
    order="plan",
    max_stream_bytes=10**9,
    keep_versions=2,
)
REASONS = [r.ReturnReason.DRAINED, r.ReturnReason.UNSTARTED, r.ReturnReason.REWARD_ERROR, r.ReturnReason.BAD_SAMPLE]


class Bench:
    """A policy, its rounds, and a clock."""

    def __init__(self, rules: EvalRules = EVAL, *, last: r.Evaluated | None = None) -> None:
        self.policy = Policy(POLICY)
        self.rounds = EvalRounds(rules, incarnation=1, last=last)
        self.now = 0.0
        self.journal: list[r.Record] = []

    def take(self, *records: r.Record) -> None:
        for record in records:
            self.policy.apply(record)
            self.journal.append(record)

    def tick(self) -> None:
        self.take(*self.rounds.tick(self.now, wall=1000.0 + self.now, state=self.policy.state))

    def announce(self, version: int, *, step: int | None = None, lineage: int = 0) -> None:
        self.take(r.Announced(version, version if step is None else step, lineage, f"m{version}", "w"))
        self.tick()

    def join(self, name: str, *, slots: int = 4, version: int | None = None) -> None:
        self.take(r.ReplicaJoined(name, "a", slots))
        if version is not None:
            self.take(r.Attested(name, "a", version))

    def grant(self, name: str, free: int = 4, request_id: str = "q") -> tuple[LeaseGrant, ...]:
        return self.rounds.grant(self.now, name, free, request_id, state=self.policy.state)

    def answer(self, name: str, grant: LeaseGrant, **other: Any) -> bool:
        return self.rounds.report(name, "a", [replace(report_of(grant), **other)])[0].accepted

    def hand_back(self, name: str, grant: LeaseGrant, reason: r.ReturnReason) -> None:
        self.rounds.hand_back(name, "a", [HandedBack(grant.lease_id, reason, None)])

    @property
    def evaluated(self) -> list[r.Evaluated]:
        return [record for record in self.journal if isinstance(record, r.Evaluated)]


def report_of(grant: LeaseGrant) -> SampleReport:
    return SampleReport(
        lease_id=grant.lease_id,
        ticket=grant.ticket,
        index=grant.index,
        attempt=grant.attempt,
        entry_id=f"{grant.lease_id.rpartition('-')[2]}-0",
        sha256=bytes(32),
        num_bytes=10,
        oldest_version=grant.version,
        newest_version=grant.version,
        num_tokens=5 + grant.index,
        reward=float(grant.row == 0),
        finished=True,
    )


def serve(bench: Bench, name: str = "a") -> None:
    """Answer everything that the replica gets."""
    while grants := bench.grant(name):
        for grant in grants:
            assert bench.answer(name, grant)
    bench.tick()


@pytest.fixture
def bench() -> Bench:
    """Version 0 announced, replica `a` of 4 slots has it."""
    made = Bench()
    made.announce(0)
    made.join("a", version=0)
    return made


def test_a_round_of_the_starting_weights_is_pinned_answered_and_journaled(bench: Bench) -> None:
    assert bench.journal[1] == r.Pinned(HOLDER, 0)
    serve(bench)
    assert bench.journal[-2:] == [
        r.Evaluated(0, 0, 0, 6, 0, 2 / 6, pytest.approx((2 / 9) ** 0.5), 5.5, True),  # type: ignore[arg-type]
        r.Unpinned(HOLDER, 0),
    ]
    assert set(bench.rounds.releasable_entries(bench.policy.state)) == {f"{n}-0" for n in range(1, 7)}


def test_leases_are_for_one_version_until_a_moment_and_take_half_of_the_slots(bench: Bench) -> None:
    grants = bench.grant("a")
    assert len(grants) == 2
    assert bench.grant("a") == ()
    assert bench.rounds.granted("q") == grants
    for grant in grants:
        assert is_evaluation(grant.lease_id)
        assert (grant.kind, grant.version, grant.held_until) == (r.LeaseKind.EVAL, 0, 1100.0)
    assert not bench.policy.state.leases


def test_all_slots_serve_where_no_training_sample_may_be_leased(bench: Bench) -> None:
    for step in range(3):
        bench.take(r.Decided(step, step, 0, (), 0, f"c{step}"))
    assert bench.policy.state.window.floor == 1
    assert len(bench.grant("a")) == 4


@pytest.mark.parametrize(
    ("versions", "evaluated"),
    [([0, 1, 2, 3, 4], [0, 2, 4]), ([0, 3, 4, 7], [0, 3, 4, 7]), ([0, 1], [0]), ([1, 2], [1, 2])],
)
def test_versions_at_or_past_a_multiple_are_evaluated(versions: list[int], evaluated: list[int]) -> None:
    """Where not every version is published, the next one after a multiple stands for it."""
    bench = Bench()
    for version in versions:
        bench.announce(version)
        bench.join("a", version=version)
        serve(bench)
    assert [one.version for one in bench.evaluated] == evaluated


def test_only_replicas_that_attest_the_version_serve(bench: Bench) -> None:
    bench.announce(1)
    bench.join("b", version=1)
    bench.join("c")
    assert bench.grant("b") == bench.grant("c") == bench.grant("nobody") == ()


def test_half_of_the_replicas_are_told_of_the_rounds_version_while_samples_wait(bench: Bench) -> None:
    bench.join("b")
    bench.join("c", version=0)
    bench.announce(1)
    state = bench.policy.state
    told = {name: bench.rounds.weights_for(name, state) for name in ("a", "b", "c", "nobody")}
    assert {name for name, weights in told.items() if weights is not None} == {"a", "b"}
    assert {weights.version for weights in told.values() if weights is not None} == {0}
    bench.join("b", version=1)
    assert bench.rounds.weights_for("b", state) is None
    serve(bench)
    assert bench.rounds.weights_for("a", state) is None


def test_the_next_round_supersedes_an_unfinished_one(bench: Bench) -> None:
    (first, _) = bench.grant("a")
    assert bench.answer("a", first)
    bench.announce(2)
    assert (bench.evaluated[0].num_samples, bench.evaluated[0].complete) == (1, False)
    assert bench.rounds.round is not None
    assert bench.rounds.round.version == 2
    assert [r.Unpinned(HOLDER, 0), r.Pinned(HOLDER, 2)] == bench.journal[-2:]
    assert not bench.answer("a", first)
    (note,) = [record for record in bench.journal if isinstance(record, r.Noted)]
    assert "1 of 6 samples" in note.message


def test_a_sample_that_fails_as_often_as_it_may_counts_as_failed(bench: Bench) -> None:
    for _ in range(2):
        (grant, *others) = bench.grant("a")
        assert (grant.row, grant.index) == (0, 0)
        for other in others:
            bench.hand_back("a", other, r.ReturnReason.DRAINED)
        bench.hand_back("a", grant, r.ReturnReason.REWARD_ERROR)
    serve(bench)
    assert (bench.evaluated[0].num_samples, bench.evaluated[0].num_failed, bench.evaluated[0].complete) == (5, 1, True)


def test_answers_of_other_versions_and_of_other_samples_are_refused(bench: Bench) -> None:
    first, second = bench.grant("a")
    assert not bench.answer("a", first, newest_version=1)
    assert not bench.answer("a", second, index=1 - second.index)
    assert not bench.rounds.report("b", "a", [report_of(second)])[0].accepted
    assert bench.answer("a", second)
    assert bench.answer("a", second)
    assert not bench.answer("a", second, entry_id="77-0")


def test_progress_renews_a_lease_and_silence_ends_it(bench: Bench) -> None:
    first, second = bench.grant("a")
    bench.now = 9.0
    assert bench.rounds.heartbeat(9.0, "a", "a", {first.lease_id: 3, "eval-0-9": 1}) == ((second,), ("eval-0-9",))
    bench.now = 10.5
    bench.tick()
    assert bench.rounds.granted("q") == (first,)
    bench.now = 19.5
    bench.tick()
    assert bench.rounds.granted("q") == ()
    again = bench.grant("a")
    assert [(grant.row, grant.index, grant.attempt) for grant in again] == [(0, 0, 1), (0, 1, 0)]


def test_leases_come_back_from_a_replica_that_is_gone_or_has_other_weights(bench: Bench) -> None:
    bench.announce(1)
    bench.grant("a")
    bench.take(r.Attested("a", "a", 1))
    bench.join("b")
    bench.tick()
    assert bench.rounds.granted("q") == ()
    bench.take(r.Attested("b", "a", 0))
    assert len(bench.grant("b")) == 2
    bench.take(r.ReplicaLeft("b", "a", "silent"))
    bench.tick()
    assert bench.rounds.round is None, "nobody can have version 0 any more"
    assert not bench.evaluated[0].complete


def test_a_replica_that_cannot_begin_is_asked_no_more(bench: Bench) -> None:
    bench.join("b")
    (grant, _) = bench.grant("a")
    bench.hand_back("a", grant, r.ReturnReason.UNSTARTED)
    assert bench.grant("a") == ()


def test_a_round_ends_at_its_limit(bench: Bench) -> None:
    bench.now = 100.0
    bench.tick()
    assert not bench.evaluated[0].complete
    assert bench.rounds.round is None


def test_the_last_version_is_evaluated_after_the_round_before_it_and_the_end_waits_a_while(bench: Bench) -> None:
    serve(bench)
    for step in range(8):
        bench.take(r.Decided(step, step, 0, (), 0, f"c{step}"))
    bench.announce(6)
    assert bench.rounds.end_waits(bench.now, bench.policy.state)
    bench.announce(8, step=7)
    bench.join("a", version=6)
    serve(bench)
    state = bench.policy.state
    assert bench.rounds.round is None
    assert bench.rounds.end_waits(bench.now, state), "the version after the last step is not here yet"
    bench.announce(9, step=8)
    bench.now = 49.0
    assert bench.rounds.end_waits(bench.now, state)
    bench.now = 50.0
    assert not bench.rounds.end_waits(bench.now, state)
    bench.take(*bench.rounds.stop(state))
    assert [(one.version, one.complete) for one in bench.evaluated] == [(0, True), (6, True), (9, False)]
    assert not state.pins


def test_after_a_rewind_steps_are_evaluated_again_under_the_new_lineage() -> None:
    bench = Bench(last=r.Evaluated(4, 4, 0, 6, 0, 0.5, 0.5, 5.0, True))
    for version in range(5):
        bench.announce(version)
    bench.announce(6)
    assert bench.rounds.round is not None
    bench.take(r.Rewound(2, 7, 1, "lost"))
    bench.announce(7, step=2, lineage=1)
    assert [(one.version, one.complete) for one in bench.evaluated] == [(6, False)]
    assert bench.rounds.round is None
    bench.announce(9, step=4, lineage=1)
    assert bench.rounds.round is not None


def test_after_a_restart_only_what_was_not_evaluated_begins() -> None:
    bench = Bench(last=r.Evaluated(2, 2, 0, 6, 0, 0.5, 0.5, 5.0, True))
    bench.take(r.Announced(2, 2, 0, "m", "w"), r.Pinned(HOLDER, 0))
    bench.announce(3)
    assert bench.rounds.round is None
    assert not bench.policy.state.pins
    bench.announce(4)
    assert bench.rounds.round is not None


def test_without_held_out_prompts_nothing_happens() -> None:
    bench = Bench(NOTHING)
    bench.announce(0)
    bench.join("a", version=0)
    assert bench.grant("a") == ()
    assert not bench.rounds.end_waits(0.0, bench.policy.state)
    assert bench.rounds.gauges() == {}
    assert bench.rounds.heartbeat(0.0, "a", "a", {"eval-1-1": 1}) == ((), ("eval-1-1",))


class Fleet(RuleBasedStateMachine):
    """Replicas that do anything at all, and a trainer that goes on at any pace."""

    names = st.sampled_from(["a", "b", "c"])

    @initialize()
    def begin(self) -> None:
        self.bench = Bench()
        self.given: list[tuple[str, LeaseGrant]] = []
        self.accepted: dict[tuple[int, int, int], str] = {}
        self.version = 0
        self.bench.announce(0)

    @rule(name=names, slots=st.integers(1, 5))
    def joins(self, name: str, slots: int) -> None:
        self.bench.take(r.ReplicaJoined(name, "a", slots))

    @rule(name=names)
    def leaves(self, name: str) -> None:
        self.bench.take(r.ReplicaLeft(name, "a", "silent"))

    @rule(name=names, back=st.integers(0, 2))
    def attests(self, name: str, back: int) -> None:
        self.bench.take(r.Attested(name, "a", max(0, self.version - back)))

    @rule(name=names, free=st.integers(0, 6))
    def asks(self, name: str, free: int) -> None:
        grants = self.bench.grant(name, free)
        assert len(grants) <= free
        replica = self.bench.policy.state.replicas.get(name)
        for grant in grants:
            assert replica is not None
            assert replica.version == grant.version
            self.given.append((name, grant))

    @precondition(lambda self: self.given)
    @rule(pick=st.integers(0, 50), honest=st.booleans())
    def reports(self, pick: int, honest: bool) -> None:
        name, grant = self.given[pick % len(self.given)]
        sample = (grant.version, grant.row, grant.index)
        accepted = self.bench.answer(name, grant, newest_version=grant.version + (not honest))
        if accepted:
            assert self.accepted.setdefault(sample, grant.lease_id) == grant.lease_id, "one answer a sample"

    @precondition(lambda self: self.given)
    @rule(pick=st.integers(0, 50), reason=st.sampled_from(REASONS))
    def hands_back(self, pick: int, reason: r.ReturnReason) -> None:
        self.bench.hand_back(*self.given[pick % len(self.given)], reason)

    @rule(name=names, pick=st.integers(0, 50), tokens=st.integers(0, 9))
    def beats(self, name: str, pick: int, tokens: int) -> None:
        held = {self.given[pick % len(self.given)][1].lease_id: tokens} if self.given else {}
        self.bench.rounds.heartbeat(self.bench.now, name, "a", held)

    @rule(steps=st.integers(1, 3))
    def trains(self, steps: int) -> None:
        if self.version < 40:
            self.version += steps
            self.bench.announce(self.version)

    @rule(seconds=st.floats(0.0, 12.0))
    def time_passes(self, seconds: float) -> None:
        self.bench.now += seconds
        self.bench.tick()

    @invariant()
    def each_sample_is_in_one_place(self) -> None:
        current = self.bench.rounds.round
        if current is None:
            return
        leased = [(lease.grant.row, lease.grant.index) for lease in current.leases.values()]
        answered = [sample[1:] for sample in self.accepted if sample[0] == current.version]
        places = [*leased, *current.waiting, *answered]
        assert len(places) == len(set(places)) == EVAL.num_samples - current.num_failed
        assert (HOLDER, current.version) in self.bench.policy.state.pins
        for name, replica in self.bench.policy.state.replicas.items():
            told = self.bench.rounds.weights_for(name, self.bench.policy.state)
            assert told is None or replica.version is None or replica.version <= told.version

    @invariant()
    def nothing_counts_for_the_policy(self) -> None:
        assert not self.bench.policy.state.leases
        assert len({one.version for one in self.bench.evaluated}) == len(self.bench.evaluated)

    def teardown(self) -> None:
        """Whatever came before: with time alone the round ends, and is unpinned."""
        if not hasattr(self, "bench"):
            return
        self.bench.now += EVAL.round_limit_s
        self.bench.tick()
        assert self.bench.rounds.round is None
        assert not self.bench.policy.state.pins


Fleet.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFleet = Fleet.TestCase
