"""Keeps the engine on the newest announced weights, while requests are in flight.

    announced -> pinned -> verified -> loaded -> probed -> attested -> the version before is unpinned

A version counts as proven only after its logit probe; samples with tokens of an unproven version wait in
`until_proven`. A wrong sum or a failed probe is fail-stop: `run` raises, and nothing of that version is sent.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.clock import Clock, SystemClock
from drumroll.errors import CorruptError, DrumrollError, SchedulerUnavailable, WeightsNotVisible
from drumroll.weights_manifest import WeightManifest
from drumroll_rollout.collaborators import PublishedVersions, SchedulerCalls
from drumroll_rollout.engine import Engine, EngineError
from drumroll_rollout.episode import Interrupted

logger = logging.getLogger(__name__)

_VISIBLE_WITHIN_S = 600.0
"""An announced version that is not wholly there after this long is an error."""
_LOOK_AGAIN_S = 0.25


class WeightsRefused(DrumrollError):
    """Announced weights are not what they must be, or the engine does not compute with them what it should."""


@dataclass(frozen=True, slots=True)
class Target:
    """A version that the scheduler announced."""

    version: int
    manifest_sha256: str
    lineage: int


class WeightsLoop:
    """See the module."""

    def __init__(
        self,
        *,
        engine: Engine,
        versions: PublishedVersions,
        scheduler: SchedulerCalls,
        holder: str,
        held_until: Callable[[], float | None] = lambda: None,
        on_attested: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """`held_until`: Unix seconds until which the loaded version must stay, or None; asked again and again."""
        self._engine = engine
        self._versions = versions
        self._scheduler = scheduler
        self._holder = holder
        self._held_until = held_until
        self._on_attested = on_attested
        self._clock = clock or SystemClock()
        self._newest: Target | None = None
        self._announced = asyncio.Event()
        self._proof = asyncio.Condition()
        self._proven: set[int] = set()
        self._refused = False
        self._lineages: dict[int, int] = {}
        self.attested: int | None = None
        """The version that this replica may be given leases for."""
        self.updating = False
        """A version is being loaded or probed."""

    def offer(self, newest: pb.AnnouncedWeights) -> None:
        """Take note of the newest announcement, from any reply of the scheduler."""
        if not newest.present or (self._newest is not None and newest.version <= self._newest.version):
            return
        self._newest = Target(newest.version, newest.manifest_sha256, newest.lineage)
        self._announced.set()

    @property
    def behind(self) -> int | None:
        """Versions between the attested one and the newest announced; None: nothing is attested."""
        if self.attested is None:
            return None
        return max(0, self._newest.version - self.attested) if self._newest is not None else 0

    def is_proven(self, version: int) -> bool:
        """Whether the version's probe was good on this replica."""
        return version in self._proven

    def lineage(self, version: int) -> int:
        """Lineage of a version that was loaded here."""
        return self._lineages[version]

    async def until_proven(self, versions: set[int]) -> None:
        """Wait until all of `versions` are proven.

        Raises:
            Interrupted: one is refused, and this replica ends.
        """
        async with self._proof:
            await self._proof.wait_for(lambda: self._refused or versions <= self._proven)
        if not versions <= self._proven:
            raise Interrupted

    async def run(self) -> None:
        """Update for ever.

        Raises:
            WeightsRefused: a version is damaged, stays invisible, or fails its probe.
        """
        while True:
            await self._announced.wait()
            self._announced.clear()
            await self._until_free()
            target = self._newest
            if target is None or target.version == self.attested:
                continue
            try:
                updated = await self._update(target)
            except WeightsRefused:
                await self._refuse()
                raise
            if not updated:
                self._announced.set()
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _refuse(self) -> None:
        self.attested = None
        async with self._proof:
            self._refused = True
            self._proof.notify_all()

    async def _until_free(self) -> None:
        # Asked again and again, because leases come and go meanwhile.
        while (until := self._held_until()) is not None and self._clock.wall() < until:  # noqa: ASYNC110
            await asyncio.sleep(min(_LOOK_AGAIN_S, max(0.01, until - self._clock.wall())))

    async def _update(self, target: Target) -> bool:
        """Go to `target`; False if it cannot be had (any more): look for a newer one."""
        if not await self._pin(target.version):
            logger.info("version %d cannot be pinned; waiting for a newer one", target.version)
            return False
        manifest = await self._verified(target)
        if manifest is None:
            await self._unpin(target.version)
            return False
        await self._until_free()
        before = self.attested
        self.updating = True
        try:
            await self._load(manifest)
        finally:
            self.updating = False
        if before is not None:
            await self._unpin(before)
        return True

    async def _verified(self, target: Target) -> WeightManifest | None:
        """The manifest once all of it is visible and sums up; None as soon as something newer is announced."""
        started = self._clock.monotonic()
        while True:
            try:
                return await asyncio.to_thread(self._versions.verify, target.version, target.manifest_sha256)
            except CorruptError as error:
                raise WeightsRefused(f"weight version {target.version} is damaged: {error}") from error
            except WeightsNotVisible as error:
                if self._clock.monotonic() - started > _VISIBLE_WITHIN_S:
                    raise WeightsRefused(f"announced {_VISIBLE_WITHIN_S:.0f} s ago and still: {error}") from error
            if self._newest != target:
                return None
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _load(self, manifest: WeightManifest) -> None:
        version = manifest.version
        self._lineages[version] = manifest.lineage
        started = self._clock.monotonic()
        try:
            await self._engine.load_weights(version, self._versions.path(version))
            await self._probe(manifest)
        except EngineError as error:
            raise WeightsRefused(f"weight version {version} cannot be loaded: {error}") from error
        self.attested = version
        async with self._proof:
            self._proven.add(version)
            self._proof.notify_all()
        self._on_attested()
        logger.info("version %d loaded, probed and attested in %.2f s", version, self._clock.monotonic() - started)

    async def _probe(self, manifest: WeightManifest) -> None:
        probe = manifest.probe
        if probe is None:
            raise WeightsRefused(f"weight version {manifest.version} has no logit probe")
        worst = probe.worst_difference(await self._engine.score(probe.token_ids))
        if not worst <= probe.tolerance:
            raise WeightsRefused(
                f"logit probe of weight version {manifest.version} failed: "
                f"log-probabilities differ by up to {worst:.3g}, allowed are {probe.tolerance:.3g}"
            )

    async def _pin(self, version: int) -> bool:
        while True:
            try:
                reply = await self._scheduler.pin(pb.PinRequest(holder=self._holder, version=version))
            except SchedulerUnavailable:
                continue  # The client has waited and logged; without a pin the version may be deleted under our feet.
            return reply.pinned

    async def _unpin(self, version: int) -> None:
        try:
            await self._scheduler.pin(pb.PinRequest(holder=self._holder, version=version, unpin=True))
        except SchedulerUnavailable:
            logger.warning("version %d stays pinned: the scheduler does not answer", version)
