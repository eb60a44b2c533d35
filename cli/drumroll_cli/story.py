"""Reads what a job left behind: its journal, its checkpoint, its job file. Needs the job's folder alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.codec import from_proto
from drumroll_proto.v1 import journal_pb2
from google.protobuf.message import DecodeError

from drumroll.errors import CorruptError, UserError
from drumroll.job import ResolvedJob
from drumroll.segments import read_segments


@dataclass(frozen=True, slots=True)
class JobStory:
    """A job's journal, from its beginning."""

    job: ResolvedJob
    """As journaled, with its folder where it lies now."""
    records: tuple[r.Record, ...]

    @property
    def num_prompts(self) -> int:
        """Of the data set that the job opened with."""
        return next(record.num_prompts for record in self.records if isinstance(record, r.JobOpened))

    def decisions(self) -> tuple[r.Decided, ...]:
        """The steps of the final lineage's history, in order."""
        steps: dict[int, r.Decided] = {}
        for record in self.records:
            if isinstance(record, r.Decided):
                steps[record.step] = record
            elif isinstance(record, r.Rewound):
                steps = {number: decision for number, decision in steps.items() if number < record.step}
        return tuple(decision for _, decision in sorted(steps.items()))


def find_job_dir(path: Path) -> Path:
    """The job's folder: `path` itself, or the one inside a run directory.

    Raises:
        UserError: there is none, or more than one.
    """
    if (path / "journal").is_dir():
        return path
    found = sorted(folder.parent for folder in path.glob("volume/*/*/journal"))
    if len(found) != 1:
        what = "no job's folder" if not found else f"{len(found)} jobs' folders"
        raise UserError(
            f"{path} holds {what}: give a run directory, or the folder that holds journal/ and checkpoints/"
        )
    return found[0]


def read_story(path: Path) -> JobStory:
    """The story of a run directory or a job's folder.

    Raises:
        UserError: there is no journal.
        CorruptError: the journal is damaged or has gaps.
    """
    job_dir = find_job_dir(path)
    entries = read_segments(job_dir / "journal")
    if not entries:
        raise UserError(
            f"{job_dir / 'journal'} holds no archived journal yet: a job archives at checkpoints and at its end"
        )
    job = ResolvedJob.load(job_dir / "journal" / "job.json")
    layout = job.layout.model_copy(update={"job_dir": str(job_dir.resolve())})
    return JobStory(job.model_copy(update={"layout": layout}), _records(entries))


def completed_steps(path: Path) -> int | None:
    """Steps of a run that is complete; None where it is not, or where its journal cannot tell."""
    try:
        story = read_story(path)
    except (UserError, CorruptError):
        return None
    ends = [record for record in story.records if isinstance(record, r.JobEnded)]
    complete = bool(ends) and ends[-1].outcome is r.JobOutcome.COMPLETE
    return len(story.decisions()) if complete else None


def _records(entries: Sequence[tuple[int, bytes]]) -> tuple[r.Record, ...]:
    records = []
    for seq, data in entries:
        try:
            entry = journal_pb2.JournalEntry.FromString(data)
        except DecodeError as error:
            raise CorruptError(f"journal entry {seq} is not a journal entry: {error}") from error
        records += [from_proto(message) for message in entry.records]
    return tuple(records)
