"""How a vLLM engine ends: closed, killed, or with a model that could not be loaded whole."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE

import psutil
import pytest
from drumroll_rollout.engine import EngineError
from drumroll_trainer.learner.tiny_model import make_tiny_model

from drumroll.errors import JobError
from drumroll.testing import eventually

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

PROMPT = [1, *range(40, 60)]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


async def test_a_killed_engine_is_told_to_all_iterators_and_close_leaves_no_process(
    start_engine, weights, request_of, collect, collected_type
):
    others = children()
    engine = await start_engine(weights[0])
    await engine.load_weights(0, weights[0])
    answers = [collected_type() for _ in range(4)]
    tasks = [asyncio.create_task(collect(engine, request_of(PROMPT, max_tokens=180), item)) for item in answers]
    await eventually(lambda: all(item.token_ids for item in answers))
    for pid in children() - others:
        os.kill(pid, signal.SIGKILL)
    ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert all(isinstance(end, EngineError) for end in ends)
    with pytest.raises(EngineError):
        await engine.load_weights(1, weights[1])
    with pytest.raises(EngineError):
        await engine.score(PROMPT)
    await engine.close()
    assert children() <= others


async def test_a_load_that_fails_half_way_kills_the_engine_rather_than_mix_weights(
    start_engine, weights, tied_weights, request_of, collect, collected_type
):
    """Case W2: the tied version has no head, which this model needs."""
    others = children()
    engine = await start_engine(weights[0])
    with pytest.raises(EngineError, match="no weights are loaded"):
        await collect(engine, request_of(PROMPT))
    await engine.load_weights(0, weights[0])
    answer = collected_type()
    task = asyncio.create_task(collect(engine, request_of(PROMPT, max_tokens=180), answer))
    await eventually(lambda: answer.token_ids)
    with pytest.raises(EngineError, match=r"lm_head\.weight"):
        await engine.load_weights(1, tied_weights[1])
    with pytest.raises(EngineError, match=r"lm_head\.weight"):
        await asyncio.wait_for(task, 10)
    with pytest.raises(EngineError, match=r"lm_head\.weight"):
        await collect(engine, request_of(PROMPT))
    assert engine.version == 0
    await engine.close()
    assert children() <= others


async def test_a_model_that_is_too_short_for_the_job_is_the_users_mistake(start_engine, tmp_path):
    model = make_tiny_model(tmp_path / "model", seed=1, max_tokens=256)
    with pytest.raises(JobError, match=r"data\.maxPromptTokens \(320\) plus data\.maxResponseTokens \(192\)"):
        await start_engine(model)


START_AND_WAIT = """
import asyncio, sys
import psutil
from drumroll.job import ResolvedJob
from drumroll_rollout.vllm_engine import VllmEngine

async def main():
    engine = VllmEngine(ResolvedJob.load(sys.argv[1]))
    await engine.start()
    print("children", *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_an_engine_does_not_outlive_a_killed_replica(job_of, weights, tmp_path):
    job_file = tmp_path / "job.json"
    job_file.write_text(job_of(weights[0]).to_json())
    replica = await asyncio.create_subprocess_exec(
        sys.executable, "-c", START_AND_WAIT, str(job_file), stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    assert replica.stdout is not None
    words: list[bytes] = []
    while words[:1] != [b"children"]:
        line = await asyncio.wait_for(replica.stdout.readline(), 200)
        assert line, "the replica ended before its engine was up"
        words = line.split()
    pids = [int(word) for word in words[1:]]
    assert pids
    try:
        replica.kill()
        await replica.wait()
        await eventually(lambda: not any(alive(pid) for pid in pids), 30)
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
