"""Publishing: a version is written once, announced as often as need be, and compared when a replay makes it again."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from drumroll_planner import records as r

from drumroll.job import ResolvedJob
from drumroll.weights import PublishedWeights, WeightStore
from drumroll.weights_manifest import LogitProbe
from drumroll_trainer.ports import LearnerPort

logger = logging.getLogger(__name__)

PROBE_TOKENS = 32
TOLERANCES = {"float32": 2e-3, "float16": 0.05, "bfloat16": 0.3}
"""Largest difference between the trainer's and an engine's log-probabilities of one token. Both read the same rounded
weights; what differs is arithmetic: float32 in another order, or half precision in the engine (8 bits of mantissa leave
1/8 in logits of 32)."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What the scheduler is told of a version."""

    announced: r.Announced
    diverged: r.ReplayDiverged | None = None


class Publisher:
    """Rank 0's hand on the weight store."""

    def __init__(
        self,
        job: ResolvedJob,
        learner: LearnerPort,
        *,
        probe_token_ids: Sequence[int],
        tokenizer_digest: str,
        store: WeightStore | None = None,
    ) -> None:
        self._learner = learner
        self._store = store or WeightStore(job.layout.weights_dir, job.uid)
        self._probe_token_ids = tuple(probe_token_ids[:PROBE_TOKENS])
        self._tokenizer_digest = tokenizer_digest
        self._tolerance = TOLERANCES[job.spec.model.dtype]

    def has(self, version: int) -> bool:
        """Whether a complete version lies in the store."""
        return self._store.find(version) is not None

    def publish(self, *, version: int, step: int, lineage: int) -> Publication:
        """Publish the learner's weights as `version`, or compare them with the version if it exists.

        Raises:
            VolumeFull: no space left; the version does not exist.
        """
        export = self._learner.export()
        existing = self._store.find(version)
        if existing is not None and existing.weights_digest == export.weights_digest:
            return _publication(existing, step, lineage, None)
        if existing is None:
            staging = self._store.stage(version)
            export.write(staging)
            existing = self._store.publish(
                staging,
                version=version,
                step=step,
                lineage=lineage,
                tokenizer_digest=self._tokenizer_digest,
                probe=self._probe(),
            )
        diverged = None
        if existing.weights_digest != export.weights_digest:
            logger.warning("replay made other weights for version %d than were published", version)
            diverged = r.ReplayDiverged(version, existing.weights_digest, export.weights_digest)
        return _publication(existing, step, lineage, diverged)

    def release(self, versions: Sequence[int]) -> None:
        """Delete versions that nothing needs any more."""
        for version in versions:
            self._store.delete(version)

    def sweep(self) -> None:
        """Remove what a dead trainer left half written."""
        self._store.sweep()

    def _probe(self) -> LogitProbe | None:
        if len(self._probe_token_ids) < 2:
            return None
        expected = self._learner.probe(self._probe_token_ids)
        return LogitProbe(self._probe_token_ids, tuple(expected), self._tolerance)


def _publication(weights: PublishedWeights, step: int, lineage: int, diverged: r.ReplayDiverged | None) -> Publication:
    announced = r.Announced(
        version=weights.version,
        step=step,
        lineage=lineage,
        manifest_sha256=weights.manifest_sha256,
        weights_digest=weights.weights_digest,
    )
    return Publication(announced, diverged)
