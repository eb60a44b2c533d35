"""Speeds of replicas from their heartbeats, and where samples go because of them."""

from dataclasses import replace

import pytest
from drumroll_planner import records as r
from drumroll_planner.policy import Policy, Rules
from drumroll_planner.speeds import Speeds


def taught(factors: dict[str, float]) -> Speeds:
    speeds = Speeds()
    loads = [4, 8, 4, 16, 8, 4, 16, 8] * 6
    done = dict.fromkeys(factors, 0)
    for second, load in enumerate(loads):
        for name, factor in factors.items():
            speeds.heard(float(second), name, "i", {f"{name}-{lease}": done[name] for lease in range(load)})
            done[name] += round(1.0 / (factor * (0.004 + 0.00004 * load)))
    return speeds


def test_equal_replicas_are_told_apart_by_load_alone() -> None:
    speeds = taught({"a": 1.0, "b": 1.04, "c": 0.97})
    assert {speeds.factor(name) for name in "abc"} == {1.0}
    assert speeds.score("a", 3) == speeds.score("b", 3) < speeds.score("c", 4)


def test_a_slow_replica_costs_more_at_every_load() -> None:
    speeds = taught({"a": 1.0, "b": 1.0, "c": 2.5})
    assert speeds.factor("c") / speeds.factor("a") == pytest.approx(2.5, rel=0.2)
    assert speeds.score("c", 0) > speeds.score("a", 8)
    step = speeds.step_time()
    assert step is not None
    assert 0.003 < step[0] < 0.012


def test_nothing_is_known_at_first_and_of_a_new_instance() -> None:
    speeds = Speeds()
    assert speeds.step_time() is None
    assert speeds.score("a", 1) > speeds.score("a", 0)
    speeds = taught({"a": 1.0, "b": 3.0})
    assert speeds.factor("b") > 1.2
    speeds.heard(100.0, "b", "another", {})
    assert speeds.factor("b") == 1.0
    speeds.forget("a")
    speeds.forget("never-there")
    assert speeds.factor("a") == 1.0


def test_heartbeats_without_progress_or_time_teach_nothing() -> None:
    speeds = Speeds()
    for _ in range(40):
        speeds.heard(1.0, "a", "i", {"x": 5})
    for second in range(40):
        speeds.heard(2.0 + second, "a", "i", {"x": 5})
    assert speeds.step_time() is None


def test_samples_go_to_the_fast_replica_until_it_is_no_longer_cheaper(rules: Rules) -> None:
    policy = Policy(replace(rules, num_prompts=64, prompts_per_step=8, group_size=4), incarnation=1)

    class Plan:
        epoch, digest, planner = 0, "d", "test"

        def __len__(self) -> int:
            return 64

        def row(self, ordinal: int) -> int:
            return ordinal

        def predicted_tokens(self, ordinal: int) -> int:
            return 0

    def take(records: tuple[r.Record, ...]) -> None:
        for record in records:
            policy.apply(record)

    take(policy.add_plan(Plan()))  # type: ignore[arg-type]
    take((r.Announced(0, 0, 0, "m", "w"),))
    for name in ("fast", "slow"):
        take(policy.register_replica(0.0, name, "i", 64))
        take(policy.heartbeat(0.0, name, "i", {}, 0, False).records)
    done = {"fast": 0, "slow": 0}
    policy.ask(0.0, "fast", "i", 2, "q0")
    policy.ask(0.0, "slow", "i", 2, "q1")
    take(policy.assign(0.0).records)
    held = {name: list(policy.state.replicas[name].leases) for name in done}
    assert {name: len(leases) for name, leases in held.items()} == {"fast": 2, "slow": 2}
    for second in range(1, 40):
        for name, tokens in (("fast", 300), ("slow", 100)):
            done[name] += tokens
            policy.heartbeat(float(second), name, "i", dict.fromkeys(held[name], done[name]), 0, False)
    policy.ask(40.0, "fast", "i", 10, "q2")
    policy.ask(40.0, "slow", "i", 10, "q3")
    assignment = policy.assign(40.0)
    assert len(assignment.grants["fast"]) == 10
    assert len(assignment.grants.get("slow", ())) <= 10
    first = [record.replica for record in assignment.records if isinstance(record, r.Leased)][:8]
    assert set(first) == {"fast"}


def test_the_level_is_the_score_that_all_replicas_share() -> None:
    speeds = Speeds()
    assert speeds.score("a", 5) <= speeds.level(2, 10) < speeds.score("a", 6)
    uneven = taught({"a": 1.0, "b": 1.0, "c": 2.5})
    level = uneven.level(3, 240)
    fits = [max(load for load in range(400) if uneven.score(name, load - 1) <= level) for name in "abc"]
    assert 240 <= sum(fits) <= 246
    assert fits[2] < fits[0] / 2
