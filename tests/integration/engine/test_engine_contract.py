"""What every Engine owes a rollout worker, asked of the real one and of the one that replays lengths."""

import asyncio

import pytest
import pytest_asyncio
from drumroll_rollout.engine import EngineError
from drumroll_rollout.replay_engine import ReplayEngine
from drumroll_rollout.replay_lengths import ReplayLengths, ReplayTokens

from drumroll.api.spec import ReplayEngine as ReplaySettings
from drumroll.testing import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

PROMPT = [1, *range(40, 60)]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def replay_engine():
    started = ReplayEngine(
        ReplaySettings(step_seconds=0.002, step_seconds_per_sequence=0.0, load_seconds=0.01),
        lengths=ReplayLengths(seed=1, given=(10_000,)),
        tokens=ReplayTokens(1, range(3, 90)),
        slots=8,
    )
    await started.start()
    yield started
    await started.close()


@pytest.fixture(params=[pytest.param("engine", marks=pytest.mark.vllm), "replay_engine"])
def any_engine(request):
    return request.getfixturevalue(request.param)


async def test_chunks_are_consistent_and_only_the_last_has_a_finish_reason(any_engine, weights, request_of, collect):
    await any_engine.load_weights(0, weights[0])
    answer = await collect(any_engine, request_of(PROMPT, max_tokens=40))
    assert len(answer.token_ids) == 40
    for chunk in answer.chunks:
        assert len(chunk.token_ids) == len(chunk.logprobs) == len(chunk.versions)
    assert [chunk.finish_reason for chunk in answer.chunks[:-1]] == [None] * (len(answer.chunks) - 1)
    assert answer.finish_reason == "length"


async def test_requests_in_flight_go_on_over_an_update(any_engine, weights, request_of, collect, collected_type):
    await any_engine.load_weights(0, weights[0])
    answers = [collected_type() for _ in range(4)]
    tasks = [asyncio.create_task(collect(any_engine, request_of(PROMPT, max_tokens=160), item)) for item in answers]
    await eventually(lambda: all(item.token_ids for item in answers))
    await any_engine.load_weights(1, weights[1])
    assert any_engine.version == 1
    await asyncio.gather(*tasks)
    for answer in answers:
        assert len(answer.token_ids) == 160
        assert answer.versions == sorted(answer.versions)
        assert set(answer.versions) == {0, 1}


async def test_an_abort_ends_the_iterator_and_keeps_what_there_is(
    any_engine, weights, request_of, collect, collected_type
):
    await any_engine.load_weights(0, weights[0])
    request, answer = request_of(PROMPT, max_tokens=190), collected_type()
    task = asyncio.create_task(collect(any_engine, request, answer))
    await eventually(lambda: answer.token_ids)
    await any_engine.abort(request.request_id)
    await asyncio.wait_for(task, 5)
    assert answer.finish_reason == "abort"
    assert 0 < len(answer.token_ids) == len(answer.versions) < 190


async def test_an_abort_of_an_unknown_request_does_nothing(any_engine, weights):
    await any_engine.abort("never-heard-of")


async def test_an_abort_while_an_update_runs_ends_the_request(any_engine, weights, request_of, collect):
    await any_engine.load_weights(0, weights[0])
    update = asyncio.create_task(any_engine.load_weights(1, weights[1]))
    await asyncio.sleep(0)
    request = request_of(PROMPT, max_tokens=190)
    task = asyncio.create_task(collect(any_engine, request))
    await asyncio.sleep(0)
    await any_engine.abort(request.request_id)
    assert (await asyncio.wait_for(task, 5)).finish_reason == "abort"
    await update


@pytest.mark.vllm
async def test_the_same_request_cannot_run_twice(engine, weights, request_of, collect, collected_type):
    await engine.load_weights(0, weights[0])
    request, answer = request_of(PROMPT, max_tokens=190), collected_type()
    task = asyncio.create_task(collect(engine, request, answer))
    await eventually(lambda: answer.token_ids)
    with pytest.raises(EngineError, match="running already"):
        await collect(engine, request)
    await engine.abort(request.request_id)
    await task


async def test_stats_count_what_runs_and_all_tokens(any_engine, weights, request_of, collect, collected_type):
    await any_engine.load_weights(0, weights[0])
    await eventually(lambda: any_engine.stats().running == 0)
    before = any_engine.stats().tokens_total
    answers = [collected_type() for _ in range(3)]
    tasks = [asyncio.create_task(collect(any_engine, request_of(PROMPT, max_tokens=100), item)) for item in answers]
    stats = await eventually(lambda: any_engine.stats() if any_engine.stats().running == 3 else None)
    assert 0.0 < stats.kv_usage <= 1.0
    await asyncio.gather(*tasks)
    assert any_engine.stats().tokens_total == before + 300
    await eventually(lambda: any_engine.stats().running == 0)
