"""Proof that a run was what its journal says: an uninterrupted trainer, fed with the journaled decisions and the
archived samples, must make the same weights.

Compared are every published version that still lies in the weight store, and the float32 parameters of the newest
checkpoint. On a CPU, with the run's number of ranks and threads, all of them are equal bit for bit.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest

from drumroll.errors import CorruptError
from drumroll.job import ResolvedJob
from drumroll.weights import WeightStore
from drumroll_trainer.archive import ArchivedStep, read_step
from drumroll_trainer.checkpoints import Checkpoint, CheckpointStore

if TYPE_CHECKING:
    from drumroll_trainer.learner.learner import Learner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing that the run left and the replay made again."""

    what: str
    """Such as "weight version 12" or "checkpoint step_000012"."""
    expected: str
    """The run's digest."""
    actual: str
    """The replay's."""

    @property
    def equal(self) -> bool:
        """Bit for bit."""
        return self.expected == self.actual


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found."""

    num_steps: int
    comparisons: tuple[Comparison, ...]
    final_digest: str
    """Of the weights after the last step, as they would be published."""
    world_size: int | None
    """Ranks of the run, by its newest checkpoint: bit-equality is promised for 1, the replay's own number."""

    @property
    def equal(self) -> bool:
        """Something was compared, and all of it was equal."""
        return bool(self.comparisons) and all(comparison.equal for comparison in self.comparisons)

    @property
    def first_difference(self) -> Comparison | None:
        """Where the two histories part, as far as it can be seen."""
        return next((comparison for comparison in self.comparisons if not comparison.equal), None)


def replay(
    job: ResolvedJob, decisions: Sequence[r.Decided], *, on_step: Callable[[int], None] | None = None
) -> ReplayReport:
    """Train `decisions` (those of the final lineage's history, in order from step 0) on a new learner in this process.

    `on_step` is called with the number of steps done.

    Raises:
        CorruptError: decisions or archives are missing, damaged, or of different histories.
    """
    from drumroll_trainer.learner.crew import Crew
    from drumroll_trainer.learner.fsdp import join
    from drumroll_trainer.learner.learner import Learner

    learner = Learner(job, join(0, 1, 0))
    crew = Crew(learner, job)
    crew.restore(_first_folder(job))
    newest = CheckpointStore(job.layout.checkpoints_dir).newest()
    published = _Published(job)
    found = published.compare(decisions[0].version if decisions else 0, lambda: crew.export().weights_digest)
    chain = ""
    for done, decision in enumerate(decisions, start=1):
        archived = _archived(job.layout.samples_dir, decision, expected_step=done - 1, chain=chain)
        chain = decision.chain
        crew.train(decision, archived.payloads)
        # After a rewind the same weights were published again under a new number.
        following = decisions[done].version if done < len(decisions) else decision.version + 1
        for version in sorted({decision.version + 1, following}):
            found += published.compare(version, lambda: crew.export().weights_digest)
        if newest is not None and newest.state.step == done:
            found.append(_compare_checkpoint(learner, newest))
        if on_step is not None:
            on_step(done)
    world_size = newest.state.world_size if newest else None
    return ReplayReport(len(decisions), tuple(found), crew.export().weights_digest, world_size)


class _Published:
    """What the weight store still holds."""

    def __init__(self, job: ResolvedJob) -> None:
        self._store = WeightStore(job.layout.weights_dir, job.uid)
        self._versions = set(self._store.versions())

    def compare(self, version: int, digest: Callable[[], str]) -> list[Comparison]:
        """A comparison, if the version is there."""
        weights = self._store.find(version) if version in self._versions else None
        return [Comparison(f"weight version {version}", weights.weights_digest, digest())] if weights else []


def _archived(samples_dir: Path, decision: r.Decided, *, expected_step: int, chain: str) -> ArchivedStep:
    if decision.step != expected_step or chain_digest(chain, decision) != decision.chain:
        raise CorruptError(f"the decision of step {decision.step} does not continue the ones before it")
    archived = read_step(samples_dir, decision.step)
    if archived is None:
        raise CorruptError(f"step {decision.step} has no archive of samples in {samples_dir}")
    if archived.decision != decision:
        raise CorruptError(f"the archive of step {decision.step} is of another decision than the journal's")
    if not all(archived.payloads):
        raise CorruptError(f"the archive of step {decision.step} holds no samples (stream.archiveSamples is off)")
    return archived


def _first_folder(job: ResolvedJob) -> Path | None:
    """A job that began with another one's checkpoint keeps a copy of it as its own first one."""
    folders = CheckpointStore(job.layout.checkpoints_dir)
    if job.spec.resume_from is None:
        return None
    first = folders.at(0)
    if first is None:
        raise CorruptError("this job began with resumeFrom, and its first checkpoint (of step 0) is gone")
    return first.path


def _compare_checkpoint(learner: "Learner", newest: Checkpoint) -> Comparison:
    from drumroll_trainer.learner import checkpoint

    made = checkpoint.tensors_of(learner.policy, learner.optimizer)
    kept = {name: tensor.clone() for name, tensor in made.items()}
    checkpoint.load(newest.path, kept)
    return Comparison(f"checkpoint {newest.path.name}", checkpoint.digest(kept), checkpoint.digest(made))
