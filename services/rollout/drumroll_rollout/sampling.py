"""Sampling parameters of requests: the job's own and nothing of the model directory's but its end tokens.

A generation_config.json with a repetition penalty or a temperature would change the distribution that is sampled from
without the trainer knowing; so no such file is read here.
"""

from collections.abc import Sequence

from drumroll_planner.records import LeaseKind

from drumroll.api.spec import RLJobSpec
from drumroll_rollout.engine import SamplingSettings


def sampling_settings(
    spec: RLJobSpec, *, eos_token_ids: Sequence[int], kind: LeaseKind = LeaseKind.TRAIN, done_tokens: int = 0
) -> SamplingSettings:
    """Settings for one request that has `done_tokens` of its answer already.

    Evaluation samples with `data.eval.temperature` from the whole distribution. `max_tokens` may come out as 0:
    then there is nothing left to generate.
    """
    sampling = spec.sampling
    evaluation = kind is LeaseKind.EVAL and spec.data.eval is not None
    return SamplingSettings(
        temperature=spec.data.eval.temperature if evaluation and spec.data.eval else sampling.temperature,
        top_p=1.0 if evaluation else sampling.top_p,
        top_k=0 if evaluation else sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=max(0, spec.data.max_response_tokens - done_tokens),
        stop_token_ids=tuple(eos_token_ids),
        stop_strings=tuple(sampling.stop),
    )
