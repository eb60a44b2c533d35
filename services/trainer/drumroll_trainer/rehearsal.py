"""A trainer without a network: a job on made-up samples, a list of decisions for a scheduler. For tests and benches."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drumroll.data import DatasetInfo
from drumroll.job import ResolvedJob
from drumroll_trainer.fake_samples import FakePlan
from drumroll_trainer.fake_scheduler import FakeScheduler
from drumroll_trainer.loop import Parts, Trainer
from drumroll_trainer.ports import LearnerPort, SampleSource
from drumroll_trainer.publisher import Publisher
from drumroll_trainer.sources import ArchiveSource, FirstOf, MemorySource
from drumroll_trainer.stopping import Stop

PROBE = (5, 9, 7, 12, 3, 8)
DATASET = DatasetInfo(
    digest="d" * 64,
    num_prompts=64,
    min_prompt_tokens=2,
    mean_prompt_tokens=4.0,
    max_prompt_tokens=6,
    tokenizer_digest="t" * 64,
    eos_token_ids=(2,),
    pad_token_id=0,
    source="made up",
    layout="custom",
    columns={"prompt": "prompt"},
    all_columns=(),
    skipped_rows=0,
)


def make_job(
    job_dir: Path,
    model_dir: Path,
    *,
    uid: str = "job-1",
    dtype: str = "float32",
    checkpoint_every: int = 2,
    keep: int = 3,
    budget: int = 32,
    algorithm: Mapping[str, Any] | None = None,
    **spec: Any,
) -> ResolvedJob:
    """A job whose trainer needs nothing but a model directory. `spec` and `algorithm` are in the file's camelCase."""
    values: dict[str, Any] = {
        "model": {"path": str(model_dir), "dtype": dtype},
        "data": {"train": {"path": "unused.jsonl"}, "maxPromptTokens": 8, "maxResponseTokens": 16},
        "reward": {"type": "exact"},
        "algorithm": {"learningRate": 1e-2, "promptsPerStep": 2, "groupSize": 2, **(algorithm or {})},
        "trainer": {
            "maxTokensPerMicroBatch": budget,
            "threads": 1,
            "checkpoint": {"everySteps": checkpoint_every, "keep": keep},
        },
        **spec,
    }
    return ResolvedJob.model_validate(
        {
            "uid": uid,
            "name": "rehearsal",
            "namespace": "default",
            "spec": values,
            "layout": {
                "jobDir": str(job_dir),
                "dataDir": str(job_dir / "data"),
                "modelDir": str(model_dir),
                "sourceDir": str(job_dir),
            },
            "endpoints": {"scheduler": "localhost:1", "store": "redis://localhost:2"},
        }
    )


def make_trainer(
    job: ResolvedJob,
    learner: LearnerPort,
    scheduler: FakeScheduler,
    source: FakePlan | SampleSource,
    *,
    dataset: DatasetInfo = DATASET,
    stop: Stop | None = None,
) -> Trainer:
    """A trainer of `job` on fakes; the archive is asked for what `source` has not."""
    first = MemorySource(source.entries) if isinstance(source, FakePlan) else source
    publisher = Publisher(job, learner, probe_token_ids=PROBE, tokenizer_digest=dataset.tokenizer_digest)
    archive = ArchiveSource(job.layout.samples_dir)
    both = FirstOf(first, archive)
    return Trainer(Parts(job, scheduler, both, learner, publisher, dataset, stop=stop or Stop(), poll_ms=10))


def other_data(num_prompts: int, digest: str) -> DatasetInfo:
    """The rehearsal's data set with other content."""
    return replace(DATASET, num_prompts=num_prompts, digest=digest)
