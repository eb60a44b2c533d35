"""Where a starting trainer goes on: its own newest checkpoint, another job's, or the starting model."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from drumroll.data import DatasetInfo, describe_difference
from drumroll.errors import CorruptError, DataError, JobError
from drumroll.job import ResolvedJob
from drumroll_trainer.checkpoints import CheckpointStore, TrainerState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Position:
    """Between two steps."""

    step: int
    """The next one."""
    version: int
    """The version held."""
    lineage: int
    chain: str
    """Decision chain up to step - 1; empty before the first step."""


ORIGIN = Position(0, 0, 0, "")


@dataclass(frozen=True, slots=True)
class Start:
    """What to load, and what that is."""

    position: Position
    folder: Path | None
    """Checkpoint to load; None: the model directory."""
    covered: bool
    """The folder is this job's own checkpoint."""


def choose_start(
    job: ResolvedJob, checkpoints: CheckpointStore, dataset: DatasetInfo, *, accept_data_change: bool = False
) -> Start:
    """Find the newest complete checkpoint.

    Raises:
        DataError: the prepared data is not what the checkpoint was trained on, and that was not accepted; both digests
            and row counts are named.
        JobError: resumeFrom leads nowhere.
    """
    newest = checkpoints.newest()
    if newest is not None:
        state = newest.state
        _check_own(job, state, dataset, accept_data_change=accept_data_change)
        newest = checkpoints.adopt(newest)
        logger.info("resuming from %s: step %d, version %d", newest.path.name, state.step, state.version)
        return Start(Position(state.step, state.version, state.lineage, state.chain), newest.path, covered=True)
    if job.spec.resume_from is None:
        return Start(ORIGIN, None, covered=False)
    other = _find_other(Path(job.layout.source_dir) / job.spec.resume_from)
    logger.info("starting with the weights and optimizer state of %s, with a history of its own", other)
    return Start(ORIGIN, other, covered=False)


def dataset_facts(dataset: DatasetInfo) -> dict[str, object]:
    """What trainer.json keeps of the data set."""
    return asdict(dataset)


def _check_own(job: ResolvedJob, state: TrainerState, dataset: DatasetInfo, *, accept_data_change: bool) -> None:
    if state.job_uid != job.uid:
        raise JobError(
            f"the checkpoint belongs to job {state.job_uid}, this is {job.uid}; use resumeFrom to go on from it"
        )
    try:
        trained_on = DatasetInfo.from_dict(state.dataset)
    except (KeyError, TypeError) as error:
        raise CorruptError(f"trainer.json does not describe a data set: {error!r}") from error
    difference = describe_difference(trained_on, dataset)
    if difference is not None and accept_data_change:
        logger.warning("going on with other data: %s", difference)
    elif difference is not None:
        raise DataError(
            f"this job cannot resume with other data: {difference}. Give it the old data back, resume with "
            "--accept-data-change, or start a new job with resumeFrom, which has a history of its own"
        )


def _find_other(path: Path) -> Path:
    """The newest checkpoint below a run directory, a job folder or a checkpoints folder."""
    roots = [path, path / "checkpoints", *sorted(path.glob("*/checkpoints")), *sorted(path.glob("*/*/checkpoints"))]
    roots += sorted(path.glob("volume/*/*/checkpoints"))
    found = [newest for root in roots if (newest := CheckpointStore(root).newest()) is not None]
    if len(found) != 1:
        what = "holds no complete checkpoint" if not found else f"holds checkpoints of {len(found)} jobs"
        raise JobError(f"resumeFrom: {path} {what}; name the folder of one job that has trained")
    return found[0].path
