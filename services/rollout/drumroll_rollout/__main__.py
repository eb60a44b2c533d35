"""`python -m drumroll_rollout`: one rollout replica of a job."""

import asyncio
import logging
import secrets
import signal
import sys
from pathlib import Path

from drumroll_planner.records import LeaseKind
from drumroll_proto.v1 import common_pb2

from drumroll import logs
from drumroll.clock import SystemClock
from drumroll.data import DatasetInfo, PreparedDataset
from drumroll.data.waiting import until_prepared
from drumroll.environment import read_identity
from drumroll.errors import EXIT_FENCED, EXIT_INTERNAL, EXIT_OK, EXIT_USER, DrumrollError, Fenced, UserError
from drumroll.farewell import leave_words
from drumroll.health import answering
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.samples import Limits
from drumroll.signals import end_on_sigterm
from drumroll.store import connect
from drumroll.stream import SampleStream
from drumroll.weights import WeightStore
from drumroll_rollout.collaborators import Prompts
from drumroll_rollout.counters import Counters
from drumroll_rollout.engine import Engine, EngineError
from drumroll_rollout.engine_choice import choose_engine, vocabulary_size
from drumroll_rollout.rewards import build_scorer
from drumroll_rollout.text import load_decoder
from drumroll_rollout.worker import Parts, Worker

logger = logging.getLogger("drumroll_rollout")


async def serve(job: ResolvedJob, name: str, counters: Counters) -> None:
    """Run one replica to its end; see `worker.Worker.run` for what it raises."""
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    if not await until_prepared(Path(job.layout.data_dir), unless=asked):
        return
    info = DatasetInfo.load(Path(job.layout.data_dir))
    replica = common_pb2.ReplicaId(name=name, instance=secrets.token_hex(8))
    engine = choose_engine(job, replica, stop_token_ids=info.eos_token_ids)
    try:
        # Before anything opens threads or connections: vLLM forks.
        await engine.start()
        if not asked.is_set():
            await _work(job, replica, engine, asked, counters)
    finally:
        await engine.close()


async def _work(
    job: ResolvedJob,
    replica: common_pb2.ReplicaId,
    engine: Engine,
    asked: asyncio.Event,
    counters: Counters,
) -> None:
    model_dir, data_dir = Path(job.layout.model_dir), Path(job.layout.data_dir)
    train = PreparedDataset.open(data_dir, "train")
    prompts: dict[LeaseKind, Prompts] = {LeaseKind.TRAIN: train}
    if job.spec.data.eval is not None:
        prompts[LeaseKind.EVAL] = PreparedDataset.open(data_dir, "eval")
    limits = Limits.of(job, vocab_size=vocabulary_size(model_dir))
    decode = load_decoder(model_dir, trust_remote_code=job.spec.model.trust_remote_code)
    scorer = build_scorer(job)
    scorer.start()
    store = connect(job, "rollout")
    try:
        async with SchedulerClient(job, "rollout") as scheduler:
            worker = Worker(
                Parts(
                    spec=job.spec,
                    replica=replica,
                    engine=engine,
                    scheduler=scheduler,
                    store=SampleStream(store, job.uid, max_payload_bytes=limits.max_payload_bytes),
                    versions=WeightStore(job.layout.weights_dir, job.uid),
                    prompts=prompts,
                    eos_token_ids=train.info.eos_token_ids,
                    tokenizer_digest=train.info.tokenizer_digest,
                    limits=limits,
                    scorer=scorer,
                    decode_text=decode,
                    clock=SystemClock(),
                ),
                asked=asked,
                counters=counters,
            )
            async with answering(worker.why_not_ready):
                await worker.run()
    finally:
        await store.aclose()
        scorer.close()


def main() -> int:
    """Exit code: 0 job ended or drained, 2 the user's mistake, 75 replaced, 1 anything else."""
    end_on_sigterm()
    counters = Counters()
    code = EXIT_INTERNAL
    try:
        identity = read_identity()
        logs.set_up(identity.name)
        asyncio.run(serve(ResolvedJob.load(identity.job_file), identity.name, counters))
        code = EXIT_OK
    except UserError as error:
        logger.error("%s", error)
        leave_words(str(error))
        code = EXIT_USER
    except Fenced as error:
        logger.error("replaced: %s", error)
        code = EXIT_FENCED
    except (DrumrollError, EngineError) as error:
        logger.error("%s", error)
        leave_words(f"{type(error).__name__}: {error}")
    finally:
        logger.info("ended: %s", counters)
    return code


if __name__ == "__main__":
    sys.exit(main())
