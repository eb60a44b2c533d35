"""Made-up samples for tests and rehearsals of the trainer: whole plans of steps with their payloads, from a seed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from drumroll_planner import records as r

from drumroll.samples import FinishReason, SamplePayload, Sampling, encode, make_sequence, segments_from_versions


@dataclass(frozen=True, slots=True)
class FakePlan:
    """Tickets of each step, and the payloads of their samples by entry id."""

    steps: tuple[tuple[r.DecidedTicket, ...], ...]
    entries: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class FakeShape:
    """How much of everything."""

    num_steps: int = 4
    prompts_per_step: int = 2
    group_size: int = 2
    vocab_size: int = 40
    max_prompt_tokens: int = 6
    max_response_tokens: int = 12
    temperature: float = 1.0
    max_lag: int = 1
    """Tokens are of versions up to this much older than the step's."""


def make_plan(shape: FakeShape, *, seed: int = 0) -> FakePlan:
    """Steps of random samples; equal arguments give equal plans."""
    generator = np.random.default_rng(seed)
    entries: dict[str, bytes] = {}
    steps = []
    for step in range(shape.num_steps):
        tickets = []
        for place in range(shape.prompts_per_step):
            ordinal = step * shape.prompts_per_step + place
            prompt = generator.integers(3, shape.vocab_size, generator.integers(2, shape.max_prompt_tokens + 1))
            samples = [
                _add(entries, _payload(generator, shape, step, ordinal, prompt.tolist()), ordinal, index)
                for index in range(shape.group_size)
            ]
            tickets.append(r.DecidedTicket(r.TicketId(0, ordinal), ordinal, tuple(samples)))
        steps.append(tuple(tickets))
    return FakePlan(tuple(steps), entries)


def make_payload(
    *,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    logprobs: Sequence[float],
    versions: Sequence[int],
    reward: float = 0.0,
    row: int = 0,
    temperature: float = 1.0,
    finished: bool = True,
) -> SamplePayload:
    """One sample of one sequence."""
    sequence = make_sequence(
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=logprobs,
        segments=segments_from_versions(versions, replica="rollout-0", instance="fake"),
        finish_reason=FinishReason.STOP if finished else FinishReason.LENGTH,
        reward=reward,
    )
    return SamplePayload((sequence,), Sampling(temperature), row, actual_tokens=len(completion_ids))


def decided_sample(
    payload: bytes, *, entry_id: str, index: int, num_tokens: int, oldest_version: int = 0
) -> r.DecidedSample:
    """What a decision says of an encoded payload."""
    return r.DecidedSample(index, 0, entry_id, hashlib.sha256(payload).digest(), oldest_version, num_tokens)


def _payload(generator: np.random.Generator, shape: FakeShape, step: int, row: int, prompt: list[int]) -> SamplePayload:
    length = int(generator.integers(1, shape.max_response_tokens + 1))
    oldest = max(0, step - int(generator.integers(0, shape.max_lag + 1)))
    switch = int(generator.integers(0, length + 1))
    return make_payload(
        prompt_ids=prompt,
        completion_ids=generator.integers(3, shape.vocab_size, length).tolist(),
        logprobs=generator.uniform(-4.5, -2.5, length).tolist(),
        versions=[oldest] * switch + [step] * (length - switch),
        reward=float(generator.integers(0, 2)),
        row=row,
        temperature=shape.temperature,
        finished=length < shape.max_response_tokens,
    )


def _add(entries: dict[str, bytes], payload: SamplePayload, ordinal: int, index: int) -> r.DecidedSample:
    data = encode(payload)
    entry_id = f"{1000 + ordinal}-{index}"
    entries[entry_id] = data
    return decided_sample(
        data,
        entry_id=entry_id,
        index=index,
        num_tokens=payload.actual_tokens,
        oldest_version=payload.oldest_version,
    )
