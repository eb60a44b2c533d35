"""The queue's rules, for any order of wishes, workers and time; and that workers are woken for what is due."""

import asyncio
from math import inf

import pytest
from drumroll_operator.work_queue import Schedule, WorkQueue
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drumroll.testing import eventually

KEYS = st.sampled_from("abcde")
SPACING_S = 1.0


class ScheduleMachine(RuleBasedStateMachine):
    """Against a model: what each key's earliest wish is since it was last taken."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule: Schedule[str] = Schedule(spacing_s=SPACING_S)
        self.now = 0.0
        self.wishes: dict[str, float] = {}
        self.working: set[str] = set()
        self.taken_at: dict[str, float] = {}

    @rule(key=KEYS, delay=st.sampled_from([0.0, 0.5, 3.0, 10.0]))
    def add(self, key: str, delay: float) -> None:
        self.schedule.add(key, self.now + delay)
        self.wishes[key] = min(self.wishes.get(key, inf), self.now + delay)

    @rule(seconds=st.sampled_from([0.1, 0.9, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        ready = {
            key: due
            for key, wish in self.wishes.items()
            if key not in self.working and (due := max(wish, self.taken_at.get(key, -inf) + SPACING_S)) <= self.now
        }
        taken = self.schedule.take(self.now)
        if not ready:
            assert taken is None
            return
        assert taken is not None
        key, due = taken
        assert due == ready[key] == min(ready.values()), "the longest due comes first"
        del self.wishes[key]
        self.working.add(key)
        self.taken_at[key] = self.now

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.working.discard(key)
        self.schedule.done(key)

    @invariant()
    def holds_each_wish_once(self) -> None:
        assert len(self.schedule) == len(self.wishes)
        assert self.schedule.working == self.working

    @invariant()
    def knows_when_to_wake(self) -> None:
        due = [
            max(wish, self.taken_at.get(key, -inf) + SPACING_S)
            for key, wish in self.wishes.items()
            if key not in self.working
        ]
        assert self.schedule.next_due() == (min(due) if due else None)


ScheduleMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSchedule = ScheduleMachine.TestCase


async def test_no_key_starves_while_others_are_added_all_the_time() -> None:
    queue: WorkQueue[int] = WorkQueue(spacing_s=0.0)
    seen: set[int] = set()
    for key in range(50):
        queue.add(key)
    for _ in range(100):
        key, _waited = await queue.get()
        seen.add(key)
        queue.add(0)
        queue.add(1)
        queue.done(key)
    assert seen == set(range(50))


async def test_a_key_is_in_the_hands_of_one_worker_at_a_time() -> None:
    queue: WorkQueue[str] = WorkQueue(spacing_s=0.0)
    inside: set[str] = set()
    runs: list[str] = []

    async def work() -> None:
        while True:
            key, _waited = await queue.get()
            assert key not in inside
            inside.add(key)
            runs.append(key)
            await asyncio.sleep(0.001)
            inside.discard(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    try:
        for round_ in range(30):
            for key in "abc":
                queue.add(key, 0.002 * (round_ % 3))
            await asyncio.sleep(0.001)
        await eventually(lambda: len(queue) == 0 and not inside, message="an empty queue")
    finally:
        for worker in workers:
            worker.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert set(runs) == set("abc")
    assert len(runs) < 90, "wishes for a key that waits already are one wish"


async def test_a_key_that_fails_comes_back_later_and_later_until_it_succeeds() -> None:
    queue: WorkQueue[str] = WorkQueue(spacing_s=0.0, first_delay_s=0.01, longest_delay_s=0.03)
    queue.add("a")
    delays = []
    for _ in range(4):
        await queue.get()
        delays.append(queue.failed("a"))
    assert delays == pytest.approx([0.01, 0.02, 0.03, 0.03])
    await queue.get()
    queue.done("a")
    queue.add("a")
    await queue.get()
    assert queue.failed("a") == pytest.approx(0.01)
    assert queue.failed("b", at_least_s=7.0) == 7.0, "what the server asks for is kept to"


async def test_a_cancelled_worker_does_not_take_a_wake_up_with_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert (await asyncio.wait_for(second, 5))[0] == "a"
    with pytest.raises(asyncio.CancelledError):
        await first
