"""The audit objects to every journal that was tampered with, and to none that was not."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from drumroll_planner import records as r
from drumroll_planner.audit import AuditReport, CheckpointFacts, audit
from drumroll_planner.policy import Rules
from drumroll_planner.world import World
from hypothesis import given, settings
from hypothesis import strategies as st


def finished_world(rules: Rules, seed: int) -> World:
    world = World(replace(rules, steps=5, max_policy_lag=2), seed=seed)
    for _ in range(12):
        world.advance()
    world.trainer.kill(world)
    world.replicas["rollout-1"].hand_back(world, leaving=True)
    world.restart_scheduler()
    if seed % 2:
        world.lose_stream()
    world.run()
    return world


@pytest.fixture(scope="module")
def worlds(rules: Rules) -> list[World]:
    return [finished_world(rules, seed) for seed in (0, 1)]


def check(world: World, journal: list[r.Record]) -> AuditReport:
    newest = world.trainer.checkpoints[-1]
    facts = CheckpointFacts(newest.step, newest.version, newest.lineage)
    return audit(journal, rules=world.rules, checkpoint=facts)


def test_finished_runs_pass(worlds: list[World]) -> None:
    for world in worlds:
        report = check(world, world.journal)
        assert report.ok, report.findings
        assert report.counts["admitted"] == report.counts["covered"] + report.counts["surplus"]
        assert report.summary().startswith("job complete: nothing found; ")


def test_an_unfinished_journal_says_so(worlds: list[World]) -> None:
    report = check(worlds[0], worlds[0].journal[:-1])
    assert (report.outcome, report.ok) == ("unfinished", False)


REMOVED = (
    r.Accepted,
    r.Decided,
    r.Admitted,
    r.PassPlanned,
    r.Covered,
    r.Announced,
    r.Leased,
    r.Attested,
    r.ReplicaJoined,
)
DOUBLED = (
    r.Accepted,
    r.Decided,
    r.Admitted,
    r.Leased,
    r.Announced,
    r.Ended,
    r.PassPlanned,
    r.TrainerRegistered,
    r.Rewound,
)


def tampered(rng: Random, record: r.Record) -> r.Record | None:
    """The record with something changed that matters; None where there is nothing."""
    match record:
        case r.Decided():
            return _tampered_decision(rng, record)
        case r.Accepted():
            return replace(record, **rng.choice([{"sha256": b"x"}, {"lease_id": "0-0"}, {"attempt": 9}]))  # type: ignore[arg-type]
        case r.Leased():
            return replace(record, **rng.choice([{"version": 77}, {"replica": "nobody"}, {"index": record.index + 5}]))  # type: ignore[arg-type]
        case r.Trained():
            return replace(record, **rng.choice([{"chain": "0"}, {"version": 99}, {"step": 99}]))  # type: ignore[arg-type]
        case r.Covered():
            return replace(record, **rng.choice([{"version": 99}, {"lineage": 9}]))  # type: ignore[arg-type]
        case r.Rewound():
            return replace(record, **rng.choice([{"version": 0}, {"lineage": 0}, {"step": 99}]))  # type: ignore[arg-type]
        case r.Ended():
            return replace(record, tickets=(*record.tickets, r.EndedTicket(r.TicketId(9, 9), 1)))
        case _:
            return None


def _tampered_decision(rng: Random, record: r.Decided) -> r.Decided:
    member = record.tickets[0]
    sample = member.samples[0]
    changes: list[r.DecidedTicket] = [
        replace(member, row=99),
        replace(member, ticket=r.TicketId(8, 8)),
        replace(member, samples=member.samples[1:]),
        replace(member, samples=(replace(sample, entry_id="1-7"), *member.samples[1:])),
        replace(member, samples=(replace(sample, oldest_version=sample.oldest_version + 1), *member.samples[1:])),
        record.tickets[1],
    ]
    whole = [{"version": 99}, {"lineage": 9}, {"chain": "0"}, {"step": record.step + 1}]
    if rng.random() < 0.5:
        return replace(record, **rng.choice(whole))  # type: ignore[arg-type]
    return replace(record, tickets=(rng.choice(changes), *record.tickets[1:]))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), way=st.sampled_from(["remove", "double", "change"]))
def test_a_journal_that_was_tampered_with_does_not_pass(seed: int, way: str, worlds: list[World]) -> None:
    rng = Random(seed)
    world = rng.choice(worlds)
    journal = list(world.journal)
    if way == "remove":
        at = rng.choice([i for i, x in enumerate(journal) if isinstance(x, REMOVED) and not _spare(journal, i)])
        del journal[at]
    elif way == "double":
        at = rng.choice([i for i, x in enumerate(journal) if isinstance(x, DOUBLED)])
        journal.insert(at, journal[at])
    else:
        at = rng.choice([i for i, x in enumerate(journal) if tampered(rng, x) and not _unread(journal, i)])
        changed = tampered(rng, journal[at])
        assert changed is not None
        journal[at] = changed
    assert not check(world, journal).ok, (way, world.journal[at])


def _unread(journal: list[r.Record], at: int) -> bool:
    """Whether the answer was never decided: then its contents do not matter."""
    return isinstance(journal[at], r.Accepted) and _spare(journal, at)


def _spare(journal: list[r.Record], at: int) -> bool:
    """Whether nothing later builds on the record."""
    record = journal[at]
    later = journal[at + 1 :]
    match record:
        case r.Attested() | r.ReplicaJoined():
            nexts = (x for x in later if isinstance(x, type(record) | r.Leased) and x.replica == record.replica)
            return not isinstance(next(nexts, None), r.Leased) or isinstance(record, r.ReplicaJoined)
        case r.Announced():
            return not any(isinstance(x, r.Attested) and x.version == record.version for x in later)
        case r.Decided():
            return any(isinstance(x, r.Rewound) and x.step <= record.step for x in later)
        case r.Accepted():
            decided = {m.ticket for x in later if isinstance(x, r.Decided) for m in x.tickets}
            return record.ticket not in decided or any(isinstance(x, r.Discarded) for x in later)
        case r.PassPlanned():
            return not any(isinstance(x, r.Admitted) and x.ticket.epoch == record.epoch for x in later)
        case _:
            return False


def test_the_checkpoint_must_be_the_journals(worlds: list[World]) -> None:
    report = audit(worlds[0].journal, rules=worlds[0].rules, checkpoint=None)
    assert any("newest checkpoint" in finding for finding in report.findings)


def test_tokens_over_the_bound_are_found(rules: Rules, worlds: list[World]) -> None:
    world = next(w for w in worlds if any(_lags(x) for x in w.journal))
    report = audit(world.journal, rules=replace(world.rules, max_policy_lag=0), checkpoint=None)
    assert any("below" in finding for finding in report.findings)


def _lags(record: r.Record) -> bool:
    return isinstance(record, r.Decided) and any(
        s.oldest_version < record.version for t in record.tickets for s in t.samples
    )


def test_a_job_resumed_under_other_rules_is_audited_under_each_in_turn(
    rules: Rules, audited: Callable[[World], AuditReport]
) -> None:
    world = World(rules)
    for _ in range(25):
        world.advance()
    world.change_rules(replace(rules, max_policy_lag=0, target_policy_lag=0, group_size=3))
    world.run()
    newest = world.trainer.checkpoints[-1]
    facts = CheckpointFacts(newest.step, newest.version, newest.lineage)
    report = audit(world.journal, rules=world.rules, checkpoint=facts, earlier_rules={repr(rules): rules})
    assert report.ok, report.findings
    assert not audited(world).ok
