"""Schedulers are asked fairly: any number that do not answer costs little and delays none that does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from drumroll_operator.progress import ProgressPoller, Refused, Target
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server

from drumroll.rpc_status import StatusKind
from drumroll.testing import eventually


class Scheduler(SchedulerServicer):
    def __init__(self) -> None:
        self.step = 0
        self.incarnation = 1
        self.calls = 0
        self.live: dict[str, int] = {}
        self.failing = False
        self.slow = asyncio.Event()
        self.slow.set()
        self.setting = False

    async def Status(self, request: Any, context: Any) -> pb.StatusReply:  # noqa: N802 - gRPC's name
        self.calls += 1
        if self.failing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        metadata = dict(context.invocation_metadata())
        if metadata.get("authorization") != "Bearer secret":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{StatusKind.ACCESS}: no")
        reply = pb.StatusReply(phase="Running", steps_done=self.step, steps_total=9)
        reply.header.incarnation = self.incarnation
        reply.replicas.add(name="rollout-0", attested=True, version=2, leases=5, silent_s=float(self.calls))
        stats = {"timing_s/step": 4.0, "lag_min": 0.0, "lag_mean": 0.5, "lag_max": 1.0}
        reply.recent.add(step=1).stats.update(stats)
        return reply

    async def SetLive(self, request: Any, context: Any) -> pb.SetLiveReply:  # noqa: N802 - gRPC's name
        if request.name == "colour":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{StatusKind.USER}: no such value")
        self.setting = True
        await self.slow.wait()
        self.live[request.name] = request.value
        return pb.SetLiveReply()


@pytest.fixture
async def served() -> AsyncIterator[tuple[Scheduler, str]]:
    scheduler, server = Scheduler(), grpc.aio.server()
    add_SchedulerServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield scheduler, f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def poller() -> AsyncIterator[tuple[ProgressPoller, list[Any]]]:
    news: list[Any] = []
    poller = ProgressPoller(news.append, every_s=0.05)
    running = asyncio.create_task(poller.run())
    yield poller, news
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def target(address: str, uid: str = "u1") -> Target:
    return Target(("team", uid), uid, address, "secret")


async def test_news_are_told_and_their_absence_is_not(served: Any, poller: Any) -> None:
    (scheduler, address), (own, news) = served, poller
    own.want(target(address))
    await eventually(lambda: own.answers("u1").progress is not None)
    progress = own.answers("u1").progress
    assert (progress.phase, progress.steps_total, progress.seconds_per_step) == ("Running", 9, 4.0)
    assert (progress.lag.least, progress.lag.mean, progress.lag.most) == (0, 0.5, 1)
    assert progress.replicas[0].tokens_in_flight == 5
    calls = scheduler.calls
    await eventually(lambda: scheduler.calls >= calls + 4)
    assert len(news) == 1, "that time has passed is no news"
    scheduler.step = 3
    await eventually(lambda: len(news) == 2)
    assert own.answers("u1").progress.steps_done == 3


async def test_silence_is_told_once_and_ends_with_an_answer(served: Any, poller: Any) -> None:
    (_, address), (own, _) = served, poller
    own.want(target("127.0.0.1:1"))
    await eventually(lambda: own.answers("u1").unanswered_since is not None)
    since = own.answers("u1").unanswered_since
    calls = own.calls
    await eventually(lambda: own.calls >= calls + 1)
    assert own.answers("u1").unanswered_since == since
    own.want(target(address))
    await eventually(lambda: own.answers("u1").progress is not None)
    assert own.answers("u1").unanswered_since is None


async def test_an_answer_of_a_replaced_scheduler_is_not_believed(served: Any, poller: Any) -> None:
    (scheduler, address), (own, _) = served, poller
    scheduler.incarnation, scheduler.step = 2, 5
    own.want(target(address))
    await eventually(lambda: own.answers("u1").progress is not None)
    scheduler.incarnation, scheduler.step = 1, 1
    calls = scheduler.calls
    await eventually(lambda: scheduler.calls >= calls + 2)
    assert own.answers("u1").progress.steps_done == 5


async def test_many_silent_schedulers_delay_none_that_answers(served: Any, poller: Any) -> None:
    (scheduler, address), (own, _) = served, poller
    for index in range(300):
        own.want(target(f"127.0.0.1:{1 + index % 9}", f"dead-{index}"))
    own.want(target(address))
    await eventually(lambda: own.answers("u1").progress is not None, 20.0)
    calls = scheduler.calls
    await eventually(lambda: own.calls > 350, 30.0)
    await eventually(lambda: scheduler.calls > calls, 30.0)
    assert len(own._open) <= 64
    own.keep(["u1"])
    assert len(own._states) == 1


async def test_live_values_are_set_and_refusals_say_why(served: Any, poller: Any) -> None:
    (scheduler, address), (own, _) = served, poller
    with pytest.raises(Refused) as caught:
        await own.set_live("u1", "steps", 7)
    assert caught.value.temporary
    own.want(target(address))
    await own.set_live("u1", "steps", 7)
    assert scheduler.live == {"steps": 7}
    with pytest.raises(Refused, match="no such value") as caught:
        await own.set_live("u1", "colour", 1)
    assert not caught.value.temporary


async def test_a_failed_question_does_not_cut_off_a_live_value_under_way(served: Any, poller: Any) -> None:
    (scheduler, address), (own, _) = served, poller
    own.want(target(address))
    await eventually(lambda: own.answers("u1").progress is not None)
    scheduler.slow.clear()
    setting = asyncio.create_task(own.set_live("u1", "replicas", 3))
    await eventually(lambda: scheduler.setting)
    scheduler.failing = True
    await eventually(lambda: own.answers("u1").unanswered_since is not None)
    scheduler.slow.set()
    await setting
    assert scheduler.live == {"replicas": 3}


async def test_a_job_that_is_dropped_is_asked_no_more(served: Any, poller: Any) -> None:
    (scheduler, address), (own, _) = served, poller
    own.want(target(address))
    await eventually(lambda: scheduler.calls >= 1)
    own.drop("u1")
    await asyncio.sleep(0.1)  # What is under way comes to its end.
    calls = scheduler.calls
    await asyncio.sleep(0.3)
    assert scheduler.calls == calls
    assert own.answers("u1").progress is not None, "what was known stays known"
