"""How a replica leaves: finish, then abort and hand over, then give up; each within its time.

A token that was generated goes into a partial entry, which another replica goes on from. What could not be handed over
by the end counts as lost, and the counter is shown.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drumroll_planner.records import ReturnReason
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.clock import Clock
from drumroll.errors import SchedulerUnavailable
from drumroll_rollout.collaborators import SchedulerCalls
from drumroll_rollout.counters import Counters
from drumroll_rollout.engine import Engine
from drumroll_rollout.episode import StageName
from drumroll_rollout.held import HeldSamples
from drumroll_rollout.production import Production
from drumroll_rollout.session import Session

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_LONGEST_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Grace:
    """How a leaving replica divides its time, in seconds from the start of the drain."""

    finish_s: float
    """Samples may finish until then; after that they are aborted and handed over."""
    hand_over_s: float
    """All hand-backs are done by then, or given up."""

    @classmethod
    def of(cls, grace_s: float) -> "Grace":
        """Nearly all of the grace: a margin for the hand-over, and a little for the process to end in."""
        margin = min(_LONGEST_MARGIN_S, 0.4 * grace_s)
        return cls(grace_s - margin, grace_s - 0.25 * margin)

    def at_once(self) -> "Grace":
        """For a replica that fails: no time to finish anything."""
        return Grace(0.0, min(_LONGEST_MARGIN_S, max(self.hand_over_s, 1.0)))


@dataclass(frozen=True, slots=True)
class Departure:
    """Leaving, with all that it touches."""

    replica: common_pb2.ReplicaId
    engine: Engine
    scheduler: SchedulerCalls
    held: HeldSamples
    session: Session
    production: Production
    counters: Counters
    clock: Clock

    async def leave(self, grace: Grace, *, detail: str) -> None:
        """See the module. At the end the scheduler is told that this replica is gone."""
        begin = self.clock.monotonic()
        self.session.draining = True
        self.session.beat_soon()
        await self._until_empty(begin + grace.finish_s)
        for held in self.held:
            held.interrupted.set()
        await self._until_empty(begin + (grace.finish_s + grace.hand_over_s) / 2, abort=True)
        rest = list(self.held)
        await cancel([held.task for held in rest if held.task is not None])
        try:
            async with asyncio.timeout(max(0.5, begin + grace.hand_over_s - self.clock.monotonic())):
                give_back = self.production.give_back
                await asyncio.gather(*(give_back(held, ReturnReason.DRAINED, detail) for held in rest))
                request = pb.HandBackRequest(replica=self.replica, leaving=True)
                await self.scheduler.hand_back(request, deadline_s=grace.hand_over_s + 1.0)
        except (TimeoutError, SchedulerUnavailable) as error:
            logger.error("not everything could be handed back: %s", str(error) or "out of time")
        for held in rest:
            self.counters.tokens_lost += 0 if held.settled else len(held.transcript)

    async def _until_empty(self, deadline: float, *, abort: bool = False) -> None:
        while len(self.held) and self.clock.monotonic() < deadline:
            if abort:
                # Again and again: a request may reach the engine after its abort.
                for held in self.held:
                    if held.stage is StageName.RUN:
                        await self.engine.abort(held.assignment.request_id)
            await asyncio.sleep(_POLL_S)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    pending = list(tasks)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
