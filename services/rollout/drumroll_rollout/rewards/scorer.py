"""The rewards of a replica: completions in, numbers out, by a few reward processes of its own.

Works from any thread and any event loop. A process that was ended is replaced at once, so that the next call finds a
fresh one.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from drumroll.api.spec import RLJobSpec
from drumroll.errors import RewardError
from drumroll.job import ResolvedJob
from drumroll_rollout.rewards.results import RewardCrash, ScoreResult
from drumroll_rollout.rewards.setup import WorkerSetup, worker_setup
from drumroll_rollout.rewards.worker import RewardWorker

logger = logging.getLogger(__name__)


class Scorer:
    """Scores completions. `start`, then any number of `score` at a time, then `close`."""

    def __init__(self, setup: WorkerSetup, *, workers: int, timeout_s: float, require_stop: bool) -> None:
        self._setup = setup
        self._timeout_s = timeout_s
        self._require_stop = require_stop
        self._workers = workers
        self._idle: queue.SimpleQueue[RewardWorker | None] = queue.SimpleQueue()
        self._all: set[RewardWorker] = set()
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="reward")
        self._closed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the reward processes; does not wait for their imports."""
        for _ in range(self._workers):
            self._idle.put(self._start_worker())

    def close(self) -> None:
        """End all reward processes; calls that are under way crash."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for worker in self._all:
                worker.kill()
        # Whoever has borrowed a worker gives it back once its call has crashed; only then are its pipes closed.
        for _ in range(len(self._all)):
            if (returned := self._idle.get()) is not None:
                self._end(returned)
        for _ in range(self._workers):
            self._idle.put(None)
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def score(
        self,
        prompts: Sequence[Any],
        completions_text: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        inputs: Sequence[dict[str, Any]],
        finished: Sequence[bool],
    ) -> list[ScoreResult]:
        """Score completions of any number of prompts; all sequences have one entry per completion.

        `prompts` are messages or text as given in the data set, `inputs` what PreparedDataset.reward_inputs gives,
        `finished` whether the completion ended by itself.

        Raises:
            RewardError: the reward function broke its contract; no reward of this call may be used.
            RewardCrash: the reward raised, or was ended for its time or memory.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, self.score_blocking, prompts, completions_text, completion_ids, inputs, finished
        )

    def score_blocking(
        self,
        prompts: Sequence[Any],
        completions_text: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        inputs: Sequence[dict[str, Any]],
        finished: Sequence[bool],
    ) -> list[ScoreResult]:
        """`score` for callers without an event loop."""
        request = {
            "prompts": list(prompts),
            "completions": list(completions_text),
            "completion_ids": [list(ids) for ids in completion_ids],
            "inputs": list(inputs),
        }
        if not completions_text:
            return []
        with self._worker() as worker:
            reply = worker.call(request, timeout_s=self._timeout_s)
        results = _results(reply, len(completions_text))
        return apply_require_stop(results, finished) if self._require_stop else results

    @contextlib.contextmanager
    def _worker(self) -> Iterator[RewardWorker]:
        worker = self._idle.get()
        try:
            if worker is None or self._closed:
                raise RewardCrash("the scorer is closed")
            yield worker
        finally:
            self._idle.put(self._usable(worker))

    def _usable(self, worker: RewardWorker | None) -> RewardWorker | None:
        """The worker, or another one where it has ended."""
        with self._lock:
            if worker is None or self._closed or worker.alive:
                return worker
            return self._replace(worker)

    def _replace(self, worker: RewardWorker) -> RewardWorker:
        logger.warning("reward process %d has ended; another one takes its place", worker.pid)
        self._end(worker)
        return self._start_worker()

    def _start_worker(self) -> RewardWorker:
        worker = RewardWorker(self._setup)
        self._all.add(worker)
        return worker

    def _end(self, worker: RewardWorker) -> None:
        self._all.discard(worker)
        worker.close()


def _results(reply: dict[str, Any], expected: int) -> list[ScoreResult]:
    """Check what a reward process sent: it ran foreign code, so its numbers are not taken on trust."""
    try:
        results = [
            ScoreResult(float(reward), {str(name): float(value) for name, value in parts.items()})
            for reward, parts in reply["scores"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RewardCrash(f"a reward process sent no scores: {error!r}") from error
    if len(results) != expected:
        raise RewardCrash(f"a reward process sent {len(results)} scores for {expected} completions")
    return results


def apply_require_stop(results: Sequence[ScoreResult], finished: Sequence[bool]) -> list[ScoreResult]:
    """Completions that were cut at the token limit get 0, whatever their type of reward; `cut` counts them. Pure."""
    return [
        ScoreResult(result.reward if done else 0.0, result.parts | {"cut": 0.0 if done else 1.0})
        for result, done in zip(results, finished, strict=True)
    ]


def build_scorer(job: ResolvedJob) -> Scorer:
    """The scorer of a job; call `start` on it."""
    reward = job.spec.reward
    return Scorer(
        worker_setup(job.spec, job.layout.source_dir),
        workers=reward.workers,
        timeout_s=reward.timeout_seconds,
        require_stop=reward.require_stop,
    )


def check_reward(spec: RLJobSpec, source_dir: Path) -> None:
    """Load the reward once, in a process of its own, as a replica would: before a run.

    Raises:
        RewardError: it does not import, or is no function; the message names module, reason and what to do.
    """
    worker = RewardWorker(worker_setup(spec, str(source_dir)))
    try:
        worker.load()
    except RewardCrash as error:
        raise RewardError(f"reward.{spec.reward.type}: {error}") from error
    finally:
        worker.close()
