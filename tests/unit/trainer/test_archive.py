from dataclasses import replace
from pathlib import Path

import pytest
from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest
from drumroll_trainer.archive import archive_path, decisions_before, decisions_from, forget_from, read_step, write_step
from drumroll_trainer.decisions import from_wire, sample_keys, to_wire
from drumroll_trainer.fake_samples import FakePlan, FakeShape, make_plan
from drumroll_trainer.sources import ArchiveSource, FirstOf, MemorySource

from drumroll.errors import CorruptError


def decisions(plan: FakePlan) -> list[r.Decided]:
    made: list[r.Decided] = []
    for step, tickets in enumerate(plan.steps):
        bare = r.Decided(step, step, 0, tickets, max(0, step - 4), "")
        made.append(replace(bare, chain=chain_digest(made[-1].chain if made else "", bare)))
    return made


def payloads(plan: FakePlan, decision: r.Decided) -> list[bytes]:
    return [plan.entries[sample.entry_id] for _, sample in sample_keys(decision)]


@pytest.fixture
def plan() -> FakePlan:
    return make_plan(FakeShape(num_steps=3))


def test_a_decision_survives_the_wire(plan: FakePlan) -> None:
    for decision in decisions(plan):
        assert from_wire(to_wire(decision)) == decision


def test_an_archive_gives_back_decision_and_payloads(tmp_path: Path, plan: FakePlan) -> None:
    decision = decisions(plan)[0]
    write_step(tmp_path, decision, payloads(plan, decision))
    archived = read_step(tmp_path, 0)
    assert archived is not None
    assert archived.decision == decision
    assert list(archived.payloads) == payloads(plan, decision)
    assert read_step(tmp_path, 1) is None


@pytest.mark.parametrize("place", [0, 25, 200, -1])
def test_a_changed_byte_is_found(tmp_path: Path, plan: FakePlan, place: int) -> None:
    decision = decisions(plan)[0]
    path = write_step(tmp_path, decision, payloads(plan, decision))
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptError, match=path.name):
        read_step(tmp_path, 0)


def test_a_payload_of_another_sample_is_refused(tmp_path: Path, plan: FakePlan) -> None:
    decision = decisions(plan)[0]
    with_foreign = payloads(plan, decision)
    with_foreign[1] = with_foreign[0]
    write_step(tmp_path, decision, with_foreign)
    with pytest.raises(CorruptError, match="not the one that was decided"):
        read_step(tmp_path, 0)


def test_decisions_are_followed_as_far_as_their_chain_holds(tmp_path: Path, plan: FakePlan) -> None:
    made = decisions(plan)
    foreign = replace(made[2], chain="0" * 64)
    for decision in (made[0], made[1], foreign):
        write_step(tmp_path, decision, None)
    assert decisions_from(tmp_path, 0, "") == {0: made[0], 1: made[1]}
    assert decisions_from(tmp_path, 1, "another history") == {}
    assert decisions_before(tmp_path, 2) == made[:2]
    assert decisions_before(tmp_path, 2, limit=1) == [made[1]]
    forget_from(tmp_path, 1)
    assert [archive_path(tmp_path, step).exists() for step in range(3)] == [True, False, False]


async def test_what_the_stream_lost_comes_from_the_archive(tmp_path: Path, plan: FakePlan) -> None:
    decision = decisions(plan)[0]
    whole = payloads(plan, decision)
    write_step(tmp_path, decision, whole)
    entries = dict(plan.entries)
    keys = sample_keys(decision)
    del entries[keys[0][1].entry_id]
    entries[keys[1][1].entry_id] = b"damaged"
    stream = MemorySource(entries)
    assert [payload is None for payload in await stream.read(decision)][:3] == [True, True, False]
    assert await FirstOf(stream, ArchiveSource(tmp_path)).read(decision) == whole
