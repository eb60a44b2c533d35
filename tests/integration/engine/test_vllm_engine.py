"""vLLM behind the Engine protocol: what it samples, what it says of it, and what a weight update does to both."""

import asyncio
import math
from pathlib import Path

import pytest
from drumroll_rollout.engine import EngineError

from drumroll.testing import eventually

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    # torch and transformers warn about themselves inside of vLLM.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

PROMPT = [1, *range(40, 60)]
LONG_PROMPT = [1, *(3 + index * 7 % 90 for index in range(299))]
"""More than two KV blocks, so that its prefix can be shared."""


def reference_logprobs(directory: Path, token_ids: list[int], *, temperature: float = 1.0) -> list[float]:
    """transformers' log-probability of each token but the first."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0, :-1] / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    return logprobs[torch.arange(len(token_ids) - 1), torch.tensor(token_ids[1:])].tolist()


def greedy_reference(directory: Path, prompt_ids: list[int], num_tokens: int) -> list[int]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = list(prompt_ids)
    with torch.no_grad():
        for _ in range(num_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt_ids) :]


@pytest.mark.parametrize("temperature", [0.6, 1.4])
async def test_v2_logprobs_are_those_of_the_distribution_sampled_from(
    engine, weights, request_of, collect, temperature
):
    """Case V2, the rollout's half."""
    await engine.load_weights(0, weights[0])
    ratios = []
    for _ in range(3):
        answer = await collect(engine, request_of(PROMPT, temperature=temperature, max_tokens=64))
        expected = reference_logprobs(weights[0], PROMPT + answer.token_ids, temperature=temperature)[-64:]
        ratios += [math.exp(a - b) for a, b in zip(expected, answer.logprobs, strict=True)]
    assert max(abs(ratio - 1) for ratio in ratios) < 0.05
    assert abs(sum(ratios) / len(ratios) - 1) < 0.01


async def test_v6_the_model_directorys_sampling_defaults_do_not_creep_in(engine, weights, request_of, collect):
    """Case V6: top_k 20 and a penalty would show in the log-probabilities and in the variety of the first token."""
    await engine.load_weights(0, weights[0])
    assert (weights[0] / "generation_config.json").read_text().find("repetition_penalty") > 0
    answers = [await collect(engine, request_of(PROMPT, max_tokens=24)) for _ in range(6)]
    for answer in answers:
        expected = reference_logprobs(weights[0], PROMPT + answer.token_ids)[-24:]
        assert answer.logprobs == pytest.approx(expected, abs=1e-3)
    assert len({token for answer in answers for token in answer.token_ids}) > 20


async def test_v6_only_the_given_ids_end_an_answer(engine, weights, request_of, collect):
    """Case V6: end ids come with the request; those of the directory (1 and 106) and of config.json (2) do nothing."""
    await engine.load_weights(0, weights[0])
    greedy = await collect(engine, request_of(PROMPT, temperature=0.0, max_tokens=16))
    stop = greedy.token_ids[3]
    answer = await collect(engine, request_of(PROMPT, temperature=0.0, max_tokens=16, stop_token_ids=(stop,)))
    assert answer.token_ids == greedy.token_ids[: greedy.token_ids.index(stop) + 1]
    assert (answer.finish_reason, greedy.finish_reason) == ("stop", "length")


async def test_score_is_transformers_log_probabilities_after_each_update(engine, weights):
    for version in (0, 1, 2, 0):
        await engine.load_weights(version, weights[version])
        scores = await engine.score(LONG_PROMPT)
        assert scores == pytest.approx(reference_logprobs(weights[version], LONG_PROMPT), abs=1e-4)
        assert engine.version == version


async def test_score_of_one_token_is_empty(engine, weights):
    await engine.load_weights(0, weights[0])
    assert await engine.score([5]) == []


async def test_an_update_with_tied_embeddings_changes_the_head_too(tied_engine, tied_weights, request_of, collect):
    for version in (0, 1, 0, 1):
        await tied_engine.load_weights(version, tied_weights[version])
        assert await tied_engine.score(PROMPT) == pytest.approx(
            reference_logprobs(tied_weights[version], PROMPT), abs=1e-4
        )
        answer = await collect(tied_engine, request_of(PROMPT, temperature=0.0, max_tokens=12))
        assert answer.token_ids == greedy_reference(tied_weights[version], PROMPT, 12)


async def test_requests_go_on_over_an_update_and_say_which_version_made_each_token(
    engine, weights, request_of, collect, collected_type
):
    await engine.load_weights(0, weights[0])
    answers = [collected_type() for _ in range(6)]
    tasks = [asyncio.create_task(collect(engine, request_of(PROMPT, max_tokens=160), answer)) for answer in answers]
    await eventually(lambda: all(len(answer.token_ids) >= 10 for answer in answers))
    await engine.load_weights(1, weights[1])
    await asyncio.gather(*tasks)
    for answer in answers:
        assert len(answer.token_ids) == len(answer.logprobs) == len(answer.versions) == 160
        assert answer.versions == sorted(answer.versions)
        assert set(answer.versions) == {0, 1}
        first = answer.versions.index(1)
        old = reference_logprobs(weights[0], PROMPT + answer.token_ids)[-160:]
        # Exactly the tokens that are said to be version 0's have version 0's log-probabilities.
        assert answer.logprobs[:first] == pytest.approx(old[:first], abs=1e-3)
        assert answer.logprobs[first:] != pytest.approx(old[first:], abs=1e-3)


async def test_after_an_update_in_flight_a_new_prompt_is_answered_as_by_a_fresh_engine(
    engine, fresh_engine, weights, request_of, collect, collected_type
):
    """No KV of version 0 may be used, though the prompt's blocks are cached and its siblings are still running."""
    await engine.load_weights(0, weights[0])
    greedy = {"temperature": 0.0, "max_tokens": 48}
    await collect(engine, request_of(LONG_PROMPT, **greedy))
    running = [collected_type() for _ in range(3)]
    tasks = [asyncio.create_task(collect(engine, request_of(LONG_PROMPT, max_tokens=120), item)) for item in running]
    await eventually(lambda: all(item.token_ids for item in running))
    await engine.load_weights(1, weights[1])
    answer = await collect(engine, request_of(LONG_PROMPT, **greedy))
    await asyncio.gather(*tasks)
    expected = await collect(fresh_engine, request_of(LONG_PROMPT, **greedy))
    assert answer.token_ids == expected.token_ids
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert set(answer.versions) == {1}


async def test_prompts_that_wait_for_a_place_are_read_by_the_new_weights(
    engine, fresh_engine, weights, request_of, collect, collected_type
):
    """They came to vLLM with version 0, whose KV of the same prompt is cached; those sent later come with version 1."""
    await engine.load_weights(0, weights[0])
    greedy = {"temperature": 0.0, "max_tokens": 24}
    await collect(engine, request_of(LONG_PROMPT, **greedy))
    running = [collected_type() for _ in range(9)]
    tasks = [asyncio.create_task(collect(engine, request_of(PROMPT, max_tokens=60), item)) for item in running]
    await eventually(lambda: all(item.token_ids for item in running))
    waiting = [asyncio.create_task(collect(engine, request_of(LONG_PROMPT, **greedy))) for _ in range(2)]
    await eventually(lambda: engine.stats().waiting == 2)
    update = asyncio.create_task(engine.load_weights(1, weights[1]))
    later = asyncio.create_task(collect(engine, request_of(LONG_PROMPT, **greedy)))
    answers = await asyncio.gather(*waiting, later)
    await asyncio.gather(update, *tasks)
    expected = await collect(fresh_engine, request_of(LONG_PROMPT, **greedy))
    for answer in answers:
        assert set(answer.versions) == {1}
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_abort_keeps_the_tokens_made_so_far(engine, weights, request_of, collect, collected_type):
    await engine.load_weights(0, weights[0])
    request, answer = request_of(PROMPT, max_tokens=180), collected_type()
    task = asyncio.create_task(collect(engine, request, answer))
    await eventually(lambda: len(answer.token_ids) >= 8)
    await engine.abort(request.request_id)
    await task
    assert answer.finish_reason == "abort"
    assert 8 <= len(answer.token_ids) == len(answer.logprobs) == len(answer.versions) < 180
    expected = reference_logprobs(weights[0], PROMPT + answer.token_ids)[-len(answer.token_ids) :]
    assert answer.logprobs == pytest.approx(expected, abs=1e-3)


async def test_a_partial_answer_goes_on_by_its_token_ids(engine, weights, request_of, collect):
    """Case T2: no text in between, so that the second half continues exactly the first."""
    await engine.load_weights(1, weights[1])
    whole = await collect(engine, request_of(PROMPT, temperature=0.0, max_tokens=40))
    first = await collect(engine, request_of(PROMPT, temperature=0.0, max_tokens=15))
    rest = request_of(PROMPT + first.token_ids, done_tokens=15, temperature=0.0, max_tokens=25)
    second = await collect(engine, rest)
    assert first.token_ids + second.token_ids == whole.token_ids


async def test_stop_strings_end_an_answer_and_keep_their_tokens(tied_engine, tied_weights, request_of, collect):
    await tied_engine.load_weights(0, tied_weights[0])
    greedy = await collect(tied_engine, request_of(PROMPT, temperature=0.0, max_tokens=16))
    from transformers import AutoTokenizer

    text = AutoTokenizer.from_pretrained(tied_weights[0]).decode(greedy.token_ids[4:6])
    request = request_of(PROMPT, temperature=0.0, max_tokens=16, stop_strings=(text,))
    answer = await collect(tied_engine, request)
    assert answer.finish_reason == "stop"
    assert answer.token_ids == greedy.token_ids[: len(answer.token_ids)]
    assert answer.token_ids[-2:] == greedy.token_ids[4:6]


async def test_a_caller_that_goes_away_leaves_nothing_running(engine, weights, request_of):
    await engine.load_weights(0, weights[0])
    chunks = engine.generate(request_of(PROMPT, max_tokens=180))
    await anext(chunks)
    await chunks.aclose()
    await engine.score(PROMPT)
    await eventually(lambda: engine.stats().running == 0)


async def test_two_replicas_draw_different_answers(engine, fresh_engine, weights, request_of, collect):
    await engine.load_weights(1, weights[1])
    ours = await collect(engine, request_of(PROMPT, max_tokens=48))
    theirs = await collect(fresh_engine, request_of(PROMPT, max_tokens=48))
    assert ours.token_ids != theirs.token_ids


async def test_a_version_with_a_missing_shard_is_refused_and_the_engine_goes_on(
    engine, weights, request_of, collect, tmp_path
):
    """Case W2."""
    await engine.load_weights(1, weights[1])
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}')
    with pytest.raises(EngineError, match=r"model-00002-of-00002\.safetensors"):
        await engine.load_weights(2, tmp_path)
    assert engine.version == 1
    assert (await collect(engine, request_of(PROMPT, max_tokens=4))).versions == [1] * 4
