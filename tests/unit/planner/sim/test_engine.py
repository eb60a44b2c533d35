"""The closed form is the sum of its steps: whatever arrives when, however little memory there is."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from drumroll_planner.costs import CostModel
from drumroll_planner.sim.engine import Engine
from drumroll_planner.sim.request import Request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drumroll.errors import UserError

ANY_REQUESTS = st.lists(
    st.tuples(st.floats(0.0, 1.5), st.integers(1, 70), st.integers(1, 60), st.sampled_from([None, "a", "b"])),
    min_size=1,
    max_size=14,
)


def run_to_end(engine: Engine, requests: list[Request], arrivals: list[float]) -> dict[object, float]:
    for request, arrival in sorted(zip(requests, arrivals, strict=True), key=lambda each: each[1]):
        engine.add(arrival, request)
    engine.advance(inf)
    return {request.key: time for time, request in engine.finished}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=ANY_REQUESTS,
    slots=st.integers(1, 6),
    chunk=st.integers(8, 64),
    kv=st.sampled_from([None, 144, 160, 256, 400]),
)
def test_finishes_are_those_of_a_loop_over_single_steps(
    asked: list[tuple[float, int, int, str | None]],
    slots: int,
    chunk: int,
    kv: int | None,
    costs: CostModel,
    walk: Callable[..., Any],
    walked: Any,
) -> None:
    # Samples of a group have the same prompt.
    sizes = {"a": 33, "b": 50}
    asked = [(at, sizes.get(group or "", prompt), length, group) for at, prompt, length, group in asked]
    slow = [walked(at, prompt, length, group) for at, prompt, length, group in asked]
    walking = walk(costs, slow, slots=slots, chunk=chunk, kv=kv)
    engine = Engine(costs, max_concurrent=slots, chunk_tokens=chunk, kv_tokens=kv)
    fast = [Request(number, each[1], each[2], group=each[3]) for number, each in enumerate(asked)]
    # The sort by arrival is stable in both, so equal times keep their order.
    ends = run_to_end(engine, fast, [each[0] for each in asked])
    assert [ends[number] for number in range(len(asked))] == pytest.approx([each.ended for each in slow], rel=1e-9)
    assert engine.num_preemptions == walking.preemptions
    assert engine.num_running == engine.kv_tokens == engine.num_waiting == 0
    assert engine.num_tokens == sum(length for _, _, length, _ in asked)


@settings(max_examples=60, deadline=None)
@given(asked=ANY_REQUESTS, looks=st.lists(st.floats(0.0, 3.0), max_size=12))
def test_looking_in_between_changes_no_finish(
    asked: list[tuple[float, int, int, str | None]], looks: list[float]
) -> None:
    costs = CostModel(step_s=0.01, sequence_s=0.001, kv_s=1e-5, prefill_s=1e-4)
    results = []
    for times in ([], sorted(looks)):
        engine = Engine(costs, max_concurrent=4, chunk_tokens=32, kv_tokens=320)
        for number, (_, prompt, length, _) in enumerate(asked):
            engine.add(0.0, Request(number, prompt, length))
        for time in times:
            engine.advance(time)
        engine.advance(inf)
        results.append([(request.key, pytest.approx(time)) for time, request in engine.finished])
    assert results[0] == results[1]


def test_the_next_time_is_that_of_the_next_finish(costs: CostModel) -> None:
    engine = Engine(costs, max_concurrent=4)
    assert engine.next_time() == inf
    engine.add(1.0, Request("a", 10, 5))
    assert engine.next_time() == 1.0
    engine.begin()
    time = engine.next_time()
    engine.advance(time)
    assert engine.finished[0] == (time, engine.finished[0][1])
    assert engine.next_time() == time


def test_a_pause_moves_every_finish_by_its_length(costs: CostModel) -> None:
    ends = []
    for pause in (0.0, 2.0):
        engine = Engine(costs, max_concurrent=4)
        engine.add(0.0, Request("a", 10, 50))
        engine.advance(0.1)
        ready = engine.pause(0.1, pause)
        assert ready >= 0.1 + pause
        engine.advance(inf)
        ends.append(engine.finished[0][0])
    assert ends[1] == pytest.approx(ends[0] + 2.0)


def test_a_removed_request_leaves_its_tokens_and_its_place(costs: CostModel) -> None:
    engine = Engine(costs, max_concurrent=1, kv_tokens=160)
    running, waiting, third = Request("a", 10, 50), Request("b", 10, 50), Request("c", 10, 5)
    for request in (running, waiting, third):
        engine.add(0.0, request)
    engine.advance(0.2)
    done = engine.remove(0.2, running)
    assert 0 < done < 50
    assert engine.remove(0.2, waiting) == 0
    assert engine.remove(0.2, waiting) == 0, "it is gone already"
    engine.advance(inf)
    assert [request.key for _, request in engine.finished] == ["c"]
    assert engine.num_tokens == done + 5


def test_a_request_goes_on_behind_the_tokens_it_has(costs: CostModel) -> None:
    engine = Engine(costs, max_concurrent=1)
    engine.add(0.0, Request("a", 10, 50, done=49))
    engine.advance(inf)
    assert engine.num_tokens == 1
    assert engine.num_prefill_tokens == 59


def test_a_sample_that_never_fits_is_refused(costs: CostModel) -> None:
    engine = Engine(costs, max_concurrent=1, kv_tokens=64)
    with pytest.raises(UserError, match="kv_tokens: 64 cannot hold"):
        engine.add(0.0, Request("a", 60, 5))


def test_a_group_prefills_its_prompt_once_unless_sharing_is_off(costs: CostModel) -> None:
    tokens = []
    for share in (True, False):
        engine = Engine(costs, max_concurrent=4, share_prefix=share)
        for number in range(4):
            engine.add(0.0, Request(number, 33, 5, group="g"))
        engine.advance(inf)
        tokens.append(engine.num_prefill_tokens)
    assert tokens == [33 + 3 * 1, 4 * 33]


def test_costs_of_nothing_take_no_time() -> None:
    engine = Engine(CostModel(), max_concurrent=2)
    engine.add(3.0, Request("a", 5, 5))
    engine.advance(4.0)
    assert [time for time, _ in engine.finished] == [3.0]
