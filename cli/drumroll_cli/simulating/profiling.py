"""Drives an engine through a short sweep and notes what its steps take. One load at a time; nothing else should run."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drumroll_planner.cost_fit import DecodeMeasurement, PrefillMeasurement, fit_decode, fit_prefill
from drumroll_planner.costs import CostModel
from drumroll_rollout.engine import Engine, GenerationRequest, SamplingSettings

from drumroll.errors import UserError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is measured."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    """Prompt tokens of each sequence."""
    prefills: tuple[int, ...]
    tokens: int
    """Answer tokens of each sequence."""
    repeats: int

    @property
    def max_prompt_tokens(self) -> int:
        return max(*self.contexts, *self.prefills)


@dataclass(frozen=True, slots=True)
class Profile:
    """A fitted cost model, and what it was fitted to."""

    model: CostModel
    decode: tuple[DecodeMeasurement, ...]
    prefill: tuple[PrefillMeasurement, ...]


class Profiler:
    """One engine under measurement; every prompt differs, so that no prefix is shared."""

    def __init__(self, engine: Engine, *, vocabulary: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._now = now
        self._numbers = itertools.count()

    async def decode(self, batch: int, context: int, tokens: int) -> DecodeMeasurement:
        """The mean decode step of `batch` sequences, while all of them run."""
        times = await asyncio.gather(*(self._generate(context, tokens) for _ in range(batch)))
        begin, end = max(each[0] for each in times), min(each[-1] for each in times)
        # Tokens of one sequence between the last first token and the first last one; several may come at a time.
        own = [at for at in times[0] if begin <= at <= end]
        places = [place for place, at in enumerate(times[0]) if begin <= at <= end]
        steps = times[0].index(own[-1]) - times[0].index(own[0])
        if steps <= 0:
            own, places, steps = [times[0][0], times[0][-1]], [0, len(times[0]) - 1], len(times[0]) - 1
        middle = (places[0] + places[-1]) / 2 + 1
        return DecodeMeasurement(batch, batch * (context + middle), max(1e-9, (own[-1] - own[0]) / steps))

    async def prefill(self, tokens: int) -> PrefillMeasurement:
        """Time to the first token of a prompt that runs alone."""
        began = self._now()
        times = await self._generate(tokens, 1)
        return PrefillMeasurement(tokens, max(1e-9, times[0] - began))

    async def _generate(self, context: int, tokens: int) -> list[float]:
        """When each token came."""
        number = next(self._numbers)
        prompt = [(number * 7919 + place * 31) % self._vocabulary for place in range(context)]
        request = GenerationRequest(
            request_id=f"profile-{number}",
            prompt_ids=prompt,
            sampling=SamplingSettings(1.0, 1.0, 0, 1.0, tokens, ()),
            row=number,
            index=0,
        )
        times: list[float] = []
        async for chunk in self._engine.generate(request):
            times += [self._now()] * len(chunk.token_ids)
        return times


async def profile(
    engine: Engine, weights: Path, sweep: Sweep, *, name: str, vocabulary: int, say: Say, start_from: CostModel
) -> Profile:
    """Start the engine, measure, close. `start_from` gives what is not measured here: the trainer's figures.

    Raises:
        EngineError: the engine does not start, or died.
    """
    await engine.start()
    try:
        measured = await measure(engine, weights, sweep, vocabulary=vocabulary, say=say)
    finally:
        await engine.close()
    model = with_trainer_of(start_from, measured.model)
    return Profile(replace(model, name=name, source="measured by drumroll profile"), measured.decode, measured.prefill)


async def measure(engine: Engine, weights: Path, sweep: Sweep, *, vocabulary: int, say: Say) -> Profile:
    """Measure and fit a started engine; versions 0 and 1 are loaded from `weights`."""
    await engine.load_weights(0, weights)
    began = time.perf_counter()
    await engine.load_weights(1, weights)
    pause = time.perf_counter() - began
    say(f"weight load: {pause:.2f} s")
    profiler = Profiler(engine, vocabulary=vocabulary)
    # The first requests of an engine pay for what is made on demand.
    await profiler.decode(min(2, max(sweep.batches)), min(sweep.contexts), min(8, sweep.tokens))
    decode = [each async for each in _decodes(profiler, sweep, say)]
    prefill = [await profiler.prefill(tokens) for tokens in sweep.prefills for _ in range(sweep.repeats)]
    fitted, _ = fit_decode(decode)
    fitted, _ = fit_prefill(fitted, prefill)
    return Profile(replace(fitted, publish_pause_s=pause), tuple(decode), tuple(prefill))


def with_trainer_of(trainer: CostModel, replica: CostModel) -> CostModel:
    """The replica's costs with another model's figures of the trainer."""
    return replace(
        replica,
        train_step_s=trainer.train_step_s,
        train_token_s=trainer.train_token_s,
        train_padded_s=trainer.train_padded_s,
        publish_s=trainer.publish_s,
        checkpoint_s=trainer.checkpoint_s,
    )


async def _decodes(profiler: Profiler, sweep: Sweep, say: Say) -> AsyncIterator[DecodeMeasurement]:
    for batch, context in itertools.product(sweep.batches, sweep.contexts):
        measured = [await profiler.decode(batch, context, sweep.tokens) for _ in range(sweep.repeats)]
        say(f"{batch} sequences of {context} tokens: {1e3 * min(m.seconds for m in measured):.2f} ms a step")
        for each in measured:
            yield each


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """`1,2,4`: whole numbers of 1 or more, ascending.

    Raises:
        UserError: they are not.
    """
    parts: Sequence[str] = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"{option}: {text!r} is not a list of numbers; write such as 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))
