"""The engine that a job asks for. vLLM is imported only if it is wanted."""

import json
from pathlib import Path

from drumroll_proto.v1 import common_pb2

from drumroll.errors import JobError
from drumroll.job import ResolvedJob
from drumroll_rollout.engine import Engine
from drumroll_rollout.replay_engine import ReplayEngine
from drumroll_rollout.replay_lengths import ReplayLengths, ReplayTokens, read_lengths


def choose_engine(job: ResolvedJob, replica: common_pb2.ReplicaId, *, stop_token_ids: tuple[int, ...]) -> Engine:
    """Make the engine of `spec.rollout.engine`; not started.

    Raises:
        UserError: the file of lengths or the model's config cannot be read.
    """
    if job.spec.rollout.engine.type == "replay":
        return _replay_engine(job, stop_token_ids)
    from drumroll_rollout.vllm_engine import VllmEngine

    return VllmEngine(job, replica=replica.name, instance=replica.instance)


def _replay_engine(job: ResolvedJob, stop_token_ids: tuple[int, ...]) -> ReplayEngine:
    settings = job.spec.rollout.engine.replay
    seed = job.spec.seed
    if settings.lengths is None:
        lengths = ReplayLengths(seed, settings.median_tokens, settings.sigma)
    else:
        lengths = read_lengths(Path(job.layout.source_dir) / settings.lengths, seed=seed)
    vocabulary = [token for token in range(vocabulary_size(Path(job.layout.model_dir))) if token not in stop_token_ids]
    return ReplayEngine(
        settings,
        lengths=lengths,
        tokens=ReplayTokens(seed, vocabulary),
        slots=job.spec.rollout.max_concurrent_samples,
    )


def vocabulary_size(model_dir: Path) -> int:
    """`vocab_size` of a model's config.json.

    Raises:
        JobError: the file is missing or does not say.
    """
    try:
        config = json.loads((model_dir / "config.json").read_text())
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        return int(size)
    except (OSError, ValueError, TypeError) as error:
        raise JobError(f"model.path: {model_dir / 'config.json'} has no vocab_size: {error}") from error
