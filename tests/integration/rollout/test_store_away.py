"""The store goes away while samples finish: nothing is lost, and nothing that was reported is missing."""

from typing import Any

from drumroll_rollout.fake_scheduler import FakeScheduler, Work

from drumroll.testing import eventually


async def test_a_killed_store_that_comes_back_costs_no_sample(
    scheduler: FakeScheduler, start_replica: Any, store_process: Any, store_is_up: Any, reader: Any
) -> None:
    scheduler.add(*(Work(row, index) for row in range(5) for index in range(4)))
    replica = await start_replica(tokens=400, step_seconds=0.001)
    await eventually(lambda: len(scheduler.heard.reports) >= 4)
    store_process.kill()
    before = len(scheduler.heard.reports)
    await eventually(lambda: replica.worker.counters.store_retries_total >= 16, deadline_s=20.0)
    assert len(scheduler.heard.reports) <= before + 8
    store_process.start()
    await eventually(store_is_up, deadline_s=20.0)
    await eventually(lambda: len(scheduler.heard.reports) == 20, deadline_s=30.0)
    for report in scheduler.heard.reports:
        assert (await reader.sample(report.entry)).actual_tokens == 400
    assert {(r.sample.ticket.ordinal, r.sample.index) for r in scheduler.heard.reports} == {
        (row, index) for row in range(5) for index in range(4)
    }
    assert not scheduler.heard.hand_backs
    assert replica.worker.counters.tokens_lost == 0
