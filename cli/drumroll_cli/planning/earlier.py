"""Earlier answers: of a run, or of a file of lengths."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.lengths import Groups, log

from drumroll.errors import UserError
from drumroll_cli.story import JobStory, find_job_dir, read_story

_BATCH = 256


def earlier_answers(path: Path, *, num_rows: int) -> Iterator[Groups]:
    """Earlier answers, oldest first.

    Raises:
        UserError: there are none at `path`.
    """
    if path.is_file():
        yield from _of_file(path, num_rows)
        return
    job_dir = find_job_dir(path)
    answers = job_dir / "plans" / "answers.log"
    data_log = answers.read_bytes() if answers.exists() else _of_journal(read_story(path))
    yield from log.batches(log.decode(data_log), num_rows=num_rows)


def _of_journal(story: JobStory) -> bytes:
    """The log that a run without one would have written."""
    size = story.job.spec.algorithm.group_size
    accepted: dict[tuple[r.TicketId, int], r.Accepted] = {}
    lines = [log.head(size)]
    for record in story.records:
        if isinstance(record, r.Accepted):
            accepted[record.ticket, record.index] = record
        elif isinstance(record, r.Decided):
            for member in record.tickets:
                keys = [(member.ticket, one.index) for one in member.samples]
                known = [accepted[key] for key in keys if key in accepted]
                answers = [(one.num_tokens, not one.finished) for one in known]
                reward = sum(one.reward for one in known) / len(known) if known else float("nan")
                lines.append(log.encode(member.row, record.step, reward=reward, answers=answers, group_size=size))
    return b"".join(lines)


def _of_file(path: Path, num_rows: int) -> Iterator[Groups]:
    """Lengths of a CSV or JSONL file with columns row (or prompt_id) and tokens (or output_tokens)."""
    found: dict[int, list[float]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = map(json.loads, file) if path.suffix == ".jsonl" else csv.DictReader(file)
            for place, line in enumerate(rows):
                row = int(line.get("row") or line.get("prompt_id") or place)
                found.setdefault(row, []).append(float(line.get("tokens") or line["output_tokens"]))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"--history: {path} has no lengths: {error!r}; write columns row and tokens") from error
    kept = [(row, lengths) for row, lengths in sorted(found.items()) if 0 <= row < num_rows]
    for start in range(0, len(kept), _BATCH):
        part = kept[start : start + _BATCH]
        yield Groups.of([row for row, _ in part], [lengths for _, lengths in part])
