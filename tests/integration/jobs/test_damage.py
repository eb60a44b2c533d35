"""A finished run that was tampered with: the audit names what does not hold (exit 1), or what cannot be read (2)."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drumroll_planner import records as r
from drumroll_planner.codec import from_proto, to_proto
from drumroll_proto.v1 import journal_pb2

from drumroll.segments import read_segments, write_segment

Verb = Callable[..., tuple[int, str]]
Change = Callable[[r.Record], list[r.Record]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path, new_job: Callable[..., Any]) -> Iterator[Any]:
    """One run to its end, that tests copy."""
    job = new_job(tmp_path_factory.mktemp("finished"), model, steps=4)
    yield job.start()
    job.end()


@pytest.fixture
def damaged(finished: Any, tmp_path: Path) -> Path:
    """A copy of the finished job's folder, to be damaged."""
    assert finished.wait() == 0, finished.story
    return Path(shutil.copytree(finished.job_dir, tmp_path / "copy"))


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "journal").glob("segment_*"))


def rewrite(folder: Path, change: Change) -> None:
    """The journal with other records, in one segment whose sums are right."""
    entries = []
    for seq, data in read_segments(folder / "journal"):
        entry = journal_pb2.JournalEntry.FromString(data)
        changed = journal_pb2.JournalEntry()
        for message in entry.records:
            for record in change(from_proto(message)):
                changed.records.append(to_proto(record, time=message.time, incarnation=message.incarnation))
        entries.append((seq, changed.SerializeToString()))
    for path in segments(folder):
        path.unlink()
    write_segment(folder / "journal", entries)


def decided_in(folder: Path, step: int) -> r.Decided:
    records = [
        from_proto(message)
        for _, data in read_segments(folder / "journal")
        for message in journal_pb2.JournalEntry.FromString(data).records
    ]
    return next(record for record in records if isinstance(record, r.Decided) and record.step == step)


def name(ticket: r.TicketId) -> str:
    return f"({ticket.epoch}, {ticket.ordinal})"


def test_an_untouched_copy_holds(damaged: Path, verb: Verb) -> None:
    assert verb("audit", str(damaged))[0] == 0


def test_a_flipped_byte_names_the_segment(damaged: Path, verb: Verb) -> None:
    path = segments(damaged)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, said = verb("audit", str(damaged))
    assert code == 1
    assert path.name in said


def test_a_missing_segment_is_a_gap(damaged: Path, verb: Verb) -> None:
    missing = segments(damaged)[1]
    missing.unlink()
    code, said = verb("audit", str(damaged))
    assert code == 1
    assert str(int(missing.stem.removeprefix("segment_").partition("-")[0])) in said


def test_a_dropped_decision_names_its_tickets(damaged: Path, verb: Verb) -> None:
    victim = decided_in(damaged, 2)
    rewrite(damaged, lambda record: [] if record == victim else [record])
    code, said = verb("audit", str(damaged))
    assert code == 1
    assert all(name(member.ticket) in said for member in victim.tickets), said


def test_a_doubled_decision_names_its_tickets(damaged: Path, verb: Verb) -> None:
    first, victim = decided_in(damaged, 1), decided_in(damaged, 3)
    twice = replace(victim, tickets=(first.tickets[0], *victim.tickets[1:]))
    rewrite(damaged, lambda record: [twice] if record == victim else [record])
    code, said = verb("audit", str(damaged))
    assert code == 1
    assert name(first.tickets[0].ticket) in said, said


def test_a_token_over_the_bound_names_its_ticket(damaged: Path, verb: Verb) -> None:
    victim = decided_in(damaged, 3)
    late = replace(victim, version=victim.version + 9, mask_below=0)
    rewrite(damaged, lambda record: [late] if record == victim else [record])
    code, said = verb("audit", str(damaged))
    assert code == 1
    assert name(victim.tickets[0].ticket) in said, said


def test_a_missing_checkpoint_is_named(damaged: Path, verb: Verb) -> None:
    shutil.rmtree(damaged / "checkpoints")
    (damaged / "checkpoints").mkdir()
    code, said = verb("audit", str(damaged))
    assert code == 1
    assert "checkpoint" in said


def test_changed_samples_do_not_replay(damaged: Path, verb: Verb) -> None:
    path = damaged / "samples" / "step_000001.samples"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    code, said = verb("replay", str(damaged))
    assert code == 1
    assert "step_000001" in said


@pytest.mark.parametrize("what", ["audit", "replay"])
def test_a_folder_without_a_job_is_the_users_mistake(what: str, tmp_path: Path, verb: Verb) -> None:
    code, said = verb(what, str(tmp_path))
    assert code == 2
    assert f"{tmp_path} holds no job's folder" in said


def test_an_empty_journal_is_nothing_to_check(damaged: Path, verb: Verb) -> None:
    for path in segments(damaged):
        path.unlink()
    code, said = verb("audit", str(damaged))
    assert code == 2
    assert "no archived journal yet" in said
