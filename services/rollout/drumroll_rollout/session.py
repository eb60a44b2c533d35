"""A replica's side of the scheduler's service: registration, heartbeats, leases.

Losing a reply is harmless: a lease that the replica does not know of comes back as `missing` in a heartbeat, and one
that the scheduler does not want any more as `abort`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.errors import DrumrollError, ProtocolError, SchedulerUnavailable
from drumroll.rpc import PROTOCOL_VERSION
from drumroll_rollout.collaborators import SchedulerCalls
from drumroll_rollout.held import KINDS, Assignment, HeldSamples, assignments
from drumroll_rollout.weights_loop import WeightsLoop

logger = logging.getLogger(__name__)

_LEASE_WAIT_MS = 5_000
_HEARTBEAT_DEADLINE_S = 30.0
_MOST_REFUSALS = 3
"""Registrations in a row that did not hold; then a fresh process is to take this one's place."""
_LEAST_PAUSE_S = 0.02
"""Between lease calls that brought nothing."""


class OutOfService(DrumrollError):
    """The scheduler does not want this instance any more: it sent bad samples."""


@dataclass(frozen=True, slots=True)
class Reactions:
    """What the worker does on the scheduler's word."""

    start: Callable[[Assignment], None]
    stop: Callable[[str], None]
    """Forget a lease, by its id."""
    drain: Callable[[], None]
    gauges: Callable[[], dict[str, float]]


class Session:
    """See the module."""

    def __init__(
        self,
        scheduler: SchedulerCalls,
        *,
        replica: common_pb2.ReplicaId,
        slots: int,
        heartbeat_s: float,
        held: HeldSamples,
        weights: WeightsLoop,
        reactions: Reactions,
    ) -> None:
        self._scheduler = scheduler
        self._replica = replica
        self._slots = slots
        self._heartbeat_s = heartbeat_s
        self._held = held
        self._weights = weights
        self._reactions = reactions
        self._beat_now = asyncio.Event()
        self._changed = asyncio.Event()
        self._refusals = 0
        self.draining = False
        """Set by the worker: nothing new is started."""

    def poke(self) -> None:
        """Something changed that a waiting loop may want: free slots, or the attested version."""
        self._changed.set()

    def beat_soon(self) -> None:
        """Send a heartbeat at once: it attests, or says that the replica drains."""
        self._beat_now.set()
        self._changed.set()

    async def register(self) -> None:
        """Make the replica known (again)."""
        reply = await self._scheduler.register(
            pb.RegisterRequest(
                role=pb.ROLE_ROLLOUT,
                min_protocol=PROTOCOL_VERSION,
                max_protocol=PROTOCOL_VERSION,
                replica=self._replica,
                slots=self._slots,
            )
        )
        if reply.protocol != PROTOCOL_VERSION:
            raise ProtocolError(f"the scheduler wants protocol {reply.protocol}, {PROTOCOL_VERSION} is spoken here")
        self._heartbeat_s = reply.heartbeat_s or self._heartbeat_s
        self._weights.offer(reply.newest)
        self._beat_now.set()
        logger.info("registered as %s instance %s, %d slots", self._replica.name, self._replica.instance, self._slots)

    async def heartbeats(self) -> None:
        """Send one every so often, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):  # Which is the usual case: nothing is urgent.
                # Not wait_for: it loses a cancellation that comes at the same moment.
                async with asyncio.timeout(self._heartbeat_s):
                    await self._beat_now.wait()
            self._beat_now.clear()
            try:
                await self._beat()
            except SchedulerUnavailable as error:
                logger.warning("%s; going on with %d samples", error, len(self._held))

    async def _beat(self) -> None:
        weights = self._weights
        progress = self._held.progress(weights_updating=weights.updating)
        request = pb.HeartbeatRequest(
            replica=self._replica,
            leases=[pb.LeaseProgress(lease_id=lease, tokens_done=done) for lease, done in progress.items()],
            attested=weights.attested is not None,
            attested_version=weights.attested or 0,
            draining=self.draining,
            gauges=self._reactions.gauges(),
        )
        reply = await self._scheduler.heartbeat(request, deadline_s=_HEARTBEAT_DEADLINE_S)
        weights.offer(reply.newest)
        if reply.register_again:
            await self._register_again()
            return
        self._refusals = 0
        for lease_id in reply.abort:
            self._reactions.stop(lease_id)
        for grant in reply.missing:
            self._take(grant)
        if reply.drain:
            self._reactions.drain()

    async def _register_again(self) -> None:
        self._refusals += 1
        if self._refusals > _MOST_REFUSALS:
            raise OutOfService("the scheduler has taken this replica out of service")
        logger.warning("the scheduler does not know this replica; registering again")
        await self.register()

    async def leases(self) -> None:
        """Ask for work while there are free slots; returns when the job has ended."""
        while True:
            # Cleared before looking: a change between the look and the wait must not be missed.
            self._changed.clear()
            free = self._free_slots()
            if self._weights.attested is None or free < 1:
                await self._changed.wait()
                continue
            request = pb.LeaseRequest(replica=self._replica, free_slots=free, wait_ms=_LEASE_WAIT_MS)
            try:
                reply = await self._scheduler.lease(request)
            except SchedulerUnavailable as error:
                logger.warning("%s; asking again", error)
                continue
            if reply.finished:
                return
            await self._act_on(reply)

    async def _act_on(self, reply: pb.LeaseReply) -> None:
        for grant in reply.leases:
            self._take(grant)
        if reply.register_again:
            self.beat_soon()  # The heartbeat registers again.
        if reply.update_first or reply.register_again:
            # Asking again helps only after the next attestation; the time-out is for one that came in between.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
        elif not reply.leases:
            await asyncio.sleep(_LEAST_PAUSE_S)

    def _free_slots(self) -> int:
        """Places in the engine; but never more than twice the slots in all stages together, to bound memory."""
        return min(self._slots - self._held.generating, 2 * self._slots - len(self._held))

    def _take(self, grant: pb.LeaseGrant) -> None:
        if self._held.knows(grant.lease_id):
            return
        if grant.kind not in KINDS:
            known = common_pb2.LeaseKind.Name(grant.kind) if grant.kind in common_pb2.LeaseKind.values() else grant.kind
            raise ProtocolError(f"lease {grant.lease_id} is of kind {known}, which this release does not know")
        for assignment in assignments(grant):
            self._reactions.start(assignment)
