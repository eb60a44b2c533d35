"""Puts one rank together: who it is among the ranks, its learner, and on rank 0 the connections."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from drumroll import environment, health
from drumroll.data import DatasetInfo, PreparedDataset
from drumroll.data.waiting import until_prepared
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.samples import Limits
from drumroll.store import connect
from drumroll.stream import SampleStream
from drumroll_trainer.loop import Parts, Trainer
from drumroll_trainer.ports import LearnerPort
from drumroll_trainer.publisher import PROBE_TOKENS, Publisher
from drumroll_trainer.sources import ArchiveSource, FirstOf, StreamSource
from drumroll_trainer.stopping import Stop

logger = logging.getLogger(__name__)

LIBRARY_VARIABLES = {
    # Spinning threads on shared cores cost 4 to 10 times.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Sums in the same order whatever the machine is doing.
    "MKL_DYNAMIC": "FALSE",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the trainer's, as torchrun says it."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def from_environment(cls) -> "Ranks":
        """RANK, WORLD_SIZE and LOCAL_RANK; a single process where they are unset."""
        values = (environment.variable(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        rank, size, local_rank = (int(value) if value else None for value in values)
        return cls(rank or 0, size or 1, local_rank or 0)


def run(job: ResolvedJob, *, accept_data_change: bool = False) -> None:
    """Run this rank until the job is done.

    Raises:
        DrumrollError: as `Trainer.run`, and what is wrong with model, data or checkpoint.
    """
    environment.set_library_variables(LIBRARY_VARIABLES)
    ranks = Ranks.from_environment()
    waits_for = ["the data set", "the model"]
    health.answer_in_thread(lambda: f"it waits for {waits_for[0]}" if waits_for else None)
    # What brings the data set may bring the model as well.
    asyncio.run(until_prepared(Path(job.layout.data_dir)))
    waits_for.pop(0)
    from drumroll_trainer.learner.crew import Crew, follow
    from drumroll_trainer.learner.fsdp import join, leave
    from drumroll_trainer.learner.learner import Learner

    world = join(ranks.rank, ranks.size, ranks.local_rank)
    learner = Learner(job, world)
    waits_for.clear()
    if world.rank == 0:
        asyncio.run(lead(job, Crew(learner, job), accept_data_change=accept_data_change))
    else:
        follow(learner, job)
    leave(world)


async def lead(job: ResolvedJob, learner: LearnerPort, *, accept_data_change: bool = False) -> None:
    """What rank 0 does: connect, and run the loop."""
    stop = Stop()
    stop.install()
    dataset = DatasetInfo.load(Path(job.layout.data_dir))
    publisher = Publisher(
        job,
        learner,
        probe_token_ids=probe_tokens(job),
        tokenizer_digest=dataset.tokenizer_digest,
    )
    redis = connect(job, "trainer")
    stream = SampleStream(redis, job.uid, max_payload_bytes=Limits.of(job).max_payload_bytes)
    source = FirstOf(StreamSource(stream), ArchiveSource(job.layout.samples_dir))
    try:
        async with SchedulerClient(job, "trainer") as scheduler:
            parts = Parts(
                job, scheduler, source, learner, publisher, dataset, stop=stop, accept_data_change=accept_data_change
            )
            await Trainer(parts).run()
    finally:
        await redis.aclose()
    learner.stop()


def probe_tokens(job: ResolvedJob) -> list[int]:
    """The logit probe's tokens: the first prompts' beginning. Text that the model knows has log-probabilities near 0,
    where half precision is finest."""
    prompts = PreparedDataset.open(Path(job.layout.data_dir), "train")
    tokens: list[int] = []
    for row in range(min(len(prompts), PROBE_TOKENS)):
        tokens += prompts.prompt_ids(row)
        if len(tokens) >= PROBE_TOKENS:
            break
    return tokens[:PROBE_TOKENS]
