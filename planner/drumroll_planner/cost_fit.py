"""Fits cost models to measurements, by least squares of relative errors with no negative cost, and says how well.

`fit_decode` and `fit_prefill` take single steps, as `drumroll profile` measures them. `fit_trace` takes the times of
whole requests from a run: the simulator says which steps lie between two of them and what each step held, which makes
the times linear in the costs; a few rounds settle both.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from drumroll.errors import DataError
from drumroll_planner.costs import CostModel, FitError
from drumroll_planner.sim.engine import Engine
from drumroll_planner.sim.request import LogEntry, Request

Floats = npt.NDArray[np.float64]

KNOTS = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes of the table; behind the last measured one the line goes on."""
_HELD = 0.1
"""How firmly a round of `fit_trace` holds on to the round before, against 1 for the times themselves."""


class DecodeMeasurement(NamedTuple):
    """One decode step, or the mean of several alike."""

    batch: int
    kv_tokens: float
    """Context of all sequences together, in tokens."""
    seconds: float


class PrefillMeasurement(NamedTuple):
    """One prompt prefilled alone."""

    tokens: int
    seconds: float


class TrainMeasurement(NamedTuple):
    """One optimizer step."""

    tokens: int
    padded: int
    seconds: float


class TracedRequest(NamedTuple):
    """One request of a real run; times in seconds on one clock."""

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int
    first_token_s: float
    last_token_s: float


class Pause(NamedTuple):
    """The engine stood still, on the clock of the requests."""

    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine of a trace was set."""

    max_concurrent: int
    chunk_tokens: int
    kv_tokens: int | None = None


def fit_error(predicted: Floats, measured: Floats) -> FitError:
    """Relative errors of single measurements."""
    errors = np.abs(predicted - measured) / measured
    return FitError(float(np.median(errors)), float(np.quantile(errors, 0.9)), len(measured))


def fit_decode(measurements: Sequence[DecodeMeasurement], *, name: str = "measured") -> tuple[CostModel, FitError]:
    """A decode model with a table at the batch sizes that were measured.

    Raises:
        DataError: there is nothing to fit to.
    """
    if not measurements:
        raise DataError("no decode step was measured")
    batches = np.array([m.batch for m in measurements], dtype=np.float64)
    kv = np.array([m.kv_tokens for m in measurements], dtype=np.float64)
    seconds = np.array([m.seconds for m in measurements], dtype=np.float64)
    knots = _knots_of(batches)
    features = np.column_stack([base_features(batches, knots), kv])
    solved = nonnegative_least_squares(features / seconds[:, None], np.ones(len(seconds)))
    error = fit_error(features @ solved, seconds)
    model = replace(_with_base(CostModel(name=name), knots, solved), kv_s=float(solved[-1]))
    return replace(model, errors=(("decode", error),)), error


def fit_prefill(model: CostModel, measurements: Sequence[PrefillMeasurement]) -> tuple[CostModel, FitError]:
    """`model` with prefill costs: what a prompt takes beyond the decode step that it rides on.

    Attention over long prompts is told apart only where four sizes or more were measured.
    """
    tokens = np.array([m.tokens for m in measurements], dtype=np.float64)
    seconds = np.array([m.seconds for m in measurements], dtype=np.float64)
    base = model.base(1)
    far = 1.0 if len(np.unique(tokens)) >= 4 else 0.0
    features = np.column_stack([np.ones(len(tokens)), tokens, far * tokens * (tokens - 1) / 2])
    solved = nonnegative_least_squares(features / seconds[:, None], np.maximum(seconds - base, 0.0) / seconds)
    error = fit_error(features @ solved + base, seconds)
    chunk, token, pair = (float(each) for each in solved)
    errors = (*model.errors, ("prefill", error))
    return replace(model, chunk_s=chunk, prefill_s=token, prefill_pair_s=pair, errors=errors), error


def fit_train(model: CostModel, measurements: Sequence[TrainMeasurement]) -> tuple[CostModel, FitError]:
    """`model` with the trainer's costs, by packed and by padded tokens; the error is that of the packed line."""
    seconds = np.array([m.seconds for m in measurements], dtype=np.float64)
    fixed = np.ones(len(seconds))
    lines = []
    for tokens in ([m.tokens for m in measurements], [m.padded for m in measurements]):
        features = np.column_stack([fixed, np.array(tokens, dtype=np.float64)])
        lines.append((features, nonnegative_least_squares(features / seconds[:, None], fixed)))
    (packed, line), (_, padded_line) = lines
    error = fit_error(packed @ line, seconds)
    errors = (*model.errors, ("train", error))
    step, token, padded = float(line[0]), float(line[1]), float(padded_line[1])
    return replace(model, errors=errors, train_step_s=step, train_token_s=token, train_padded_s=padded), error


def fit_trace(
    requests: Sequence[TracedRequest],
    settings: EngineSettings,
    *,
    used: npt.NDArray[np.bool_],
    start: CostModel,
    rounds: int = 10,
    knots: Sequence[int] = KNOTS,
    pauses: Sequence[Pause] = (),
) -> tuple[CostModel, FitError]:
    """Costs from the token times of the requests that `used` names; the others only say what ran beside them.

    `pauses`: when the engine stood still for weight loads; that time is taken off.

    Each round moves no further from the one before than the times ask for, so that costs on which they say nothing
    stay as in `start`. The error is that of the latencies of the requests used.
    """
    model = start
    for _ in range(rounds):
        log, replayed = replay_trace(requests, settings, model, keep_log=True, pauses=pauses)
        times = np.array([entry[0] for entry in log])
        features = np.vstack([np.zeros(len(knots) + 5), np.cumsum(_log_features(log, knots), axis=0)])
        rows, seconds = _between_events(requests, replayed, used, times, features, pauses)
        held = _HELD * np.sqrt((rows**2).sum(axis=0))
        target = np.concatenate([seconds, held * _weights_of(model, knots)])
        solved = nonnegative_least_squares(np.vstack([rows, np.diag(held)]), target)
        model = _with_base(model, knots, solved)
        kv, token, pair, chunk = (float(each) for each in solved[len(knots) + 1 :])
        model = replace(model, kv_s=kv, prefill_s=token, prefill_pair_s=pair, chunk_s=chunk)
    _, replayed = replay_trace(requests, settings, model, pauses=pauses)
    measured = np.array([request.last_token_s - request.arrival_s for request in requests])
    predicted = np.array([last - request.arrival_s for request, (_, last) in zip(requests, replayed, strict=True)])
    error = fit_error(predicted[used], measured[used])
    return replace(model, errors=(("trace", error),)), error


def replay_trace(
    requests: Sequence[TracedRequest],
    settings: EngineSettings,
    costs: CostModel,
    *,
    keep_log: bool = False,
    pauses: Sequence[Pause] = (),
) -> tuple[list[LogEntry], list[tuple[float, float]]]:
    """The engine's log, and (first token, last token) of each request, of the same arrivals under these costs."""
    start = min(request.arrival_s for request in requests)
    engine = Engine(
        costs,
        max_concurrent=settings.max_concurrent,
        chunk_tokens=settings.chunk_tokens,
        kv_tokens=settings.kv_tokens,
        now=start,
    )
    log: list[LogEntry] = []
    engine.log = log if keep_log else None
    sent = [Request(number, each.prompt_tokens, each.answer_tokens) for number, each in enumerate(requests)]
    events: list[tuple[float, int | Pause]] = [(each.arrival_s, number) for number, each in enumerate(requests)]
    events += [(pause.start_s, pause) for pause in pauses]
    for at, event in sorted(events, key=lambda event: event[0]):
        if isinstance(event, Pause):
            engine.pause(at, event.seconds)
        else:
            engine.add(at, sent[event])
    engine.advance(float("inf"))
    ends = {request.key: time for time, request in engine.finished}
    return log, [(request.token_at, ends[request.key]) for request in sent]


def _between_events(
    requests: Sequence[TracedRequest],
    replayed: Sequence[tuple[float, float]],
    used: npt.NDArray[np.bool_],
    times: Floats,
    features: Floats,
    pauses: Sequence[Pause],
) -> tuple[Floats, Floats]:
    """Features and seconds of the answers of the requests used, from first to last token, without pauses."""
    rows, seconds = [], []
    for request, (first, last), use in zip(requests, replayed, used, strict=True):
        if not use:
            continue
        begin, end = np.searchsorted(times, [first, last]) + 1
        rows.append(features[end] - features[begin])
        still = sum(p.seconds for p in pauses if request.first_token_s <= p.start_s < request.last_token_s)
        seconds.append(request.last_token_s - request.first_token_s - still)
    return np.array(rows), np.array(seconds)


def _log_features(log: Iterable[LogEntry], knots: Sequence[int]) -> Floats:
    """[entries, knots + 5]: what each stretch of steps costs, per unit of each cost."""
    _, steps, decoding, kv, prefilled, pairs = (np.array(column, dtype=np.float64) for column in zip(*log, strict=True))
    base = base_features(np.maximum(decoding, 1.0), knots) * steps[:, None]
    context = steps * kv + decoding * steps * (steps - 1.0) / 2.0
    return np.column_stack([base, context, prefilled, pairs, (prefilled > 0).astype(np.float64)])


def base_features(batches: Floats, knots: Sequence[int]) -> Floats:
    """[n, knots + 1]: base(b) as a constant, a rise to each further knot, and the slope behind the last.

    With non-negative weights a larger batch never takes less time.
    """
    columns = [np.ones(len(batches))]
    for below, above in itertools.pairwise(knots):
        columns.append(np.clip((batches - below) / (above - below), 0.0, 1.0))
    columns.append(np.maximum(batches - knots[-1], 0.0))
    return np.column_stack(columns)


def _with_base(model: CostModel, knots: Sequence[int], solved: Floats) -> CostModel:
    """The model with the table that `base_features`' weights stand for."""
    heights = np.cumsum(solved[: len(knots)])
    table = tuple((int(knot), float(height)) for knot, height in zip(knots, heights, strict=True))
    return replace(model, table=table, step_s=0.0, sequence_s=float(solved[len(knots)]))


def _weights_of(model: CostModel, knots: Sequence[int]) -> Floats:
    """The weights that `_log_features` multiply, of a model as it is."""
    heights = np.array([model.base(knot) for knot in knots])
    rises = np.maximum(np.diff(heights), 0.0)
    rest = [model.sequence_s, model.kv_s, model.prefill_s, model.prefill_pair_s, model.chunk_s]
    return np.concatenate([heights[:1], rises, rest])


def _knots_of(batches: Floats) -> tuple[int, ...]:
    """Measured sizes among KNOTS; the largest one measured gives the slope behind the last knot."""
    kept = tuple(knot for knot in KNOTS if knot in batches and knot < batches.max())
    return kept or (int(batches.min()),)


def nonnegative_least_squares(features: Floats, target: Floats) -> Floats:
    """The non-negative weights with the least squared error (the active-set method of Lawson and Hanson, 1974)."""
    norms = np.sqrt((features**2).sum(axis=0))
    norms[norms == 0.0] = 1.0
    scaled = features / norms
    count = scaled.shape[1]
    weights, free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        gradient = scaled.T @ (target - scaled @ weights)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if free.all() or gradient[best] <= 1e-10 * np.linalg.norm(target):
            break
        free[best] = True
        weights, free = _step_to_feasible(scaled, target, weights, free)
    result: Floats = weights / norms
    return result


def _step_to_feasible(
    scaled: Floats, target: Floats, weights: Floats, free: npt.NDArray[np.bool_]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Solve for the free weights; those that would go below zero are held there, one after the other."""
    free = free.copy()
    while True:
        solved = np.zeros(len(weights))
        solved[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
        low = free & (solved <= 0.0)
        if not low.any():
            return solved, free
        step = float(np.min(weights[low] / np.maximum(weights[low] - solved[low], 1e-300)))
        weights = np.where(free, weights + step * (solved - weights), 0.0)
        free &= weights > 1e-15
        weights[~free] = 0.0
