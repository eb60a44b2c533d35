import numpy as np
import pytest
from drumroll_trainer.batch import MicroBatch, pack, plan_batch
from drumroll_trainer.sequences import StepSequences, TrainSequence, lag_facts, length_facts
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.errors import JobError

END = 2


def sequence(
    prompt: list[int], completion: list[int], versions: list[int] | None = None, **given: object
) -> TrainSequence:
    size = len(completion)
    values: dict[str, object] = {
        "group": 0,
        "sample": 0,
        "prompt_length": len(prompt),
        "token_ids": np.asarray(prompt + completion, dtype=np.int32),
        "loss_mask": np.ones(size, dtype=np.bool_),
        "logprobs": -np.arange(1, size + 1, dtype=np.float32) / 10,
        "versions": np.asarray(versions or [0] * size, dtype=np.int64),
        "temperature": 1.0,
        "reward": 0.0,
        "finished": True,
    }
    return TrainSequence(**{**values, **given})  # type: ignore[arg-type]


def single(batch_of: list[TrainSequence], *, mask_below: int = 0) -> MicroBatch:
    advantages = [float(i + 1) for i in range(len(batch_of))]
    plan = plan_batch(batch_of, advantages, mask_below=mask_below, token_budget=100, world_size=1)
    (batch,) = plan.micro_batches(0)
    return batch


def test_end_tokens_are_trained_though_pad_equals_end_t4() -> None:
    rows = [sequence([9, 8], [5, 6, END], sample=0), sequence([9], [5, 6, 7, 8, END], sample=1)]
    batch = single(rows)
    assert batch.targets.tolist() == [5, 6, END, 5, 6, 7, 8, END]
    assert [int(row.trained(mask_below=0).sum()) for row in rows] == [3, 5]
    facts = length_facts(StepSequences(tuple(rows), version=0, mask_below=0))
    assert facts["response_length/mean"] == 4
    assert (facts["response_length/min"], facts["response_length/max"]) == (3, 5)


def test_every_target_is_predicted_by_the_token_before_it_in_its_own_sequence() -> None:
    batch = single([sequence([11, 12], [13, 14], sample=0), sequence([21], [22], sample=1)])
    assert batch.token_ids.tolist() == [11, 12, 13, 14, 21, 22]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert batch.lengths == (4, 2)
    assert batch.token_ids[batch.predict_at].tolist() == [12, 13, 21]
    assert batch.targets.tolist() == [13, 14, 22]
    assert batch.advantages.tolist() == [1, 1, 2]


def test_only_tokens_over_the_bound_are_masked_v8() -> None:
    tokens = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 2]
    logprobs = [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7, -0.8, -0.9, -1.0, -1.1, -0.05]
    joined = sequence([7], tokens, [3] * 5 + [4] * 7, logprobs=np.asarray(logprobs, dtype=np.float32))
    plan = plan_batch([joined], [1.0], mask_below=4, token_budget=100, world_size=1)
    (batch,) = plan.micro_batches(0)
    assert batch.targets.tolist() == tokens[5:]
    assert batch.behaviour_logprobs.tolist() == np.asarray(logprobs[5:], dtype=np.float32).tolist()
    assert (plan.num_trained, plan.num_masked) == (7, 5)
    lags = lag_facts(StepSequences((joined,), version=6, mask_below=3))
    assert (lags["policy_lag/min"], lags["policy_lag/max"], lags["async/staleness_max"]) == (2, 3, 3)


def test_a_sample_that_is_masked_wholly_does_not_go_through_the_network() -> None:
    rows = [sequence([1], [2, 3], [0, 0], sample=0), sequence([1], [4], [5], sample=1)]
    plan = plan_batch(rows, [1.0, 1.0], mask_below=5, token_budget=100, world_size=2)
    assert plan.bins == (((1,),), ((),))
    assert (plan.num_trained, plan.num_masked, plan.num_tokens) == (1, 2, 2)


def test_a_rank_without_sequences_gets_a_turn_that_trains_nothing() -> None:
    plan = plan_batch([sequence([1], [2])], [1.0], mask_below=0, token_budget=10, world_size=3)
    turns = [plan.micro_batches(rank) for rank in range(3)]
    assert [len(t) for t in turns] == [1, 1, 1]
    assert [batch.targets.size for (batch,) in turns] == [1, 0, 0]
    assert turns[2][0].token_ids.size == 1


def test_tokens_that_the_policy_did_not_write_are_not_trained() -> None:
    mask = np.asarray([True, False, True])
    batch = single([sequence([1], [5, 6, 7], loss_mask=mask)])
    assert batch.targets.tolist() == [5, 7]


def test_a_sample_over_the_budget_is_refused_by_the_name_of_the_knob() -> None:
    with pytest.raises(JobError, match=r"maxTokensPerMicroBatch is 3, a sample has 4"):
        plan_batch([sequence([1], [2, 3, 4])], [1.0], mask_below=0, token_budget=3, world_size=1)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 120), st.integers(1, 4))
def test_packing_keeps_the_budget_loses_nothing_and_is_balanced(
    lengths: list[int], capacity: int, multiple: int
) -> None:
    bins = pack(lengths, capacity=capacity, multiple=multiple)
    loads = [sum(lengths[i] for i in held) for held in bins]
    assert sorted(i for held in bins for i in held) == list(range(len(lengths)))
    assert max(loads, default=0) <= capacity
    assert len(bins) % multiple == 0
    assert loads == sorted(loads, reverse=True)
    # Longest first into the least loaded: two bins differ by no more than one item.
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert bins == pack(lengths, capacity=capacity, multiple=multiple)


def test_packing_wastes_little() -> None:
    lengths = [(7 * i) % 97 + 3 for i in range(200)]
    bins = pack(lengths, capacity=1000, multiple=2)
    assert len(bins) <= -(-sum(lengths) // 1000) + 2
