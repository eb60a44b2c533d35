"""Events: one for what happens again, none lost in the log, none too long for the API server."""

import asyncio
import logging
from typing import Any

import pytest
from drumroll_operator.actions import Record
from drumroll_operator.cluster import EVENTS
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_cluster import MemoryCluster
from drumroll_operator.observed import JobView
from drumroll_operator.recorder import Recorder

from drumroll.clock import ManualClock
from drumroll.testing import eventually

JOB = JobView(namespace="team", name="job", uid="u1", generation=1, created=0.0, spec=None)


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi(ManualClock())


def recorder(api: MemoryApi) -> Recorder:
    return Recorder(MemoryCluster(api), "operator-1", clock=api.clock)


async def test_an_event_tells_who_what_and_about_whom(api: MemoryApi) -> None:
    own = recorder(api)
    own.record(JOB, Record("Warning", "Evicted", "job-rollout-0: evicted"))
    await own.flush()
    (event,) = api.select(EVENTS, "team")
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "Evicted", "job-rollout-0: evicted")
    assert event["regarding"]["uid"] == "u1"
    assert event["reportingController"] == "drumroll.dev/operator"
    assert event["eventTime"].endswith("Z")
    assert "series" not in event


async def test_what_happens_again_is_counted_in_the_same_event(api: MemoryApi) -> None:
    clock: Any = api.clock
    own = recorder(api)
    for _ in range(20):
        own.record(JOB, Record("Warning", "QuotaExceeded", "no room"))
        await own.flush()
        clock.advance(10.0)
    (event,) = api.select(EVENTS, "team")
    assert event["series"]["count"] >= 17
    posts = [call for call in api.calls if call[1] == "events"]
    assert len(posts) <= 8, "a count is posted twice a minute at most"
    clock.advance(700.0)
    own.record(JOB, Record("Warning", "QuotaExceeded", "no room"))
    await own.flush()
    assert len(api.select(EVENTS, "team")) == 2


async def test_a_long_text_keeps_its_cause_and_loses_nul_k12(api: MemoryApi, caplog: pytest.LogCaptureFixture) -> None:
    own = recorder(api)
    own.record(JOB, Record("Warning", "UserError", "奖" * 5_000 + "\0ValueError: the column is missing"))
    await own.flush()
    note = api.select(EVENTS, "team")[0]["note"]
    assert len(note) <= 1024
    assert len(note.encode()) <= 1024
    assert "\0" not in note
    assert note.endswith("ValueError: the column is missing")


async def test_without_the_right_to_post_it_is_said_once(api: MemoryApi, caplog: pytest.LogCaptureFixture) -> None:
    api.forbidden = {("create", "events")}
    own = recorder(api)
    running = asyncio.create_task(own.run())
    with caplog.at_level(logging.WARNING):
        for index in range(5):
            own.record(JOB, Record("Normal", "Ready", f"number {index}"))
            await asyncio.sleep(0)
        await eventually(lambda: sum(call[1] == "events" for call in api.calls) == 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert "create events" in said[0].getMessage()
