"""Who of several operators acts: the holder of a Lease that the chart made. The others wait, ready to take over.

A holder that cannot renew in time must stop at once: whoever runs `keep` ends the process when it returns. Clocks of
machines are never compared: a candidate waits until it has seen the same holder unchanged for a whole term.
"""

import asyncio
import logging
import random
from datetime import UTC, datetime
from typing import Any

from drumroll.clock import Clock, SystemClock
from drumroll_operator.cluster import LEASES, ApiError, Cluster, Raw

logger = logging.getLogger(__name__)

TERM_S = 15.0
RENEW_DEADLINE_S = 10.0
RETRY_S = 2.0


class Leader:
    """One candidate for one Lease."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Clock | None = None,
        retry_s: float = RETRY_S,
        term_s: float = TERM_S,
        renew_deadline_s: float = RENEW_DEADLINE_S,
    ) -> None:
        self._cluster = cluster
        self._place = namespace, name
        self._identity = identity
        self._clock = clock or SystemClock()
        self._retry_s, self._term_s, self._renew_deadline_s = retry_s, term_s, renew_deadline_s
        self._lease: Raw = {}
        self._seen: tuple[object, float] = (None, 0.0)
        self._renewed_at: float | None = None
        self._said = ""
        self.failure: ApiError | None = None
        """Why the last try failed; None: it did not."""

    @property
    def leads(self) -> bool:
        """The Lease is held and was renewed recently enough to act on it."""
        return self._renewed_at is not None and self._clock.monotonic() - self._renewed_at < self._renew_deadline_s

    async def acquire(self) -> None:
        """Wait until the Lease is held."""
        held = await self._try()
        while not held:
            await asyncio.sleep(self._retry_s * (0.8 + 0.4 * random.random()))
            held = await self._try()
        logger.info("%s holds the Lease %s/%s", self._identity, *self._place)

    async def keep(self) -> None:
        """Renew until that fails for too long or somebody else holds the Lease; then return: the caller must stop."""
        while self.leads:
            await asyncio.sleep(self._retry_s)
            try:
                async with asyncio.timeout(self._renew_deadline_s):
                    held = await self._try()
            except TimeoutError:
                continue
            if not held and self._holder() not in ("", self._identity):
                logger.error("the Lease %s/%s is held by %s now", *self._place, self._holder())
                self._renewed_at = None
                return
        logger.error("the Lease %s/%s could not be renewed for %.0f s", *self._place, self._renew_deadline_s)

    async def release(self) -> None:
        """Give the Lease back, so that another need not wait for its end."""
        if self._renewed_at is None:
            return
        self._renewed_at = None
        try:
            spec = self._lease.get("spec") or {}
            await self._write({**spec, "holderIdentity": "", "leaseDurationSeconds": 1})
        except ApiError as error:
            logger.warning("the Lease was not given back, the next operator waits for its end: %s", error)

    async def _try(self) -> bool:
        """Take or renew the Lease; False where it is somebody else's or the server does not let us."""
        try:
            if self._renewed_at is None or not self._lease:
                self._lease = await self._cluster.get(LEASES, *self._place)
                self._look()
            if not self._free():
                self._say(f"the Lease is held by {self._holder()}; waiting")
                return False
            # Counted from before the request: its answer may be slow.
            at = self._clock.monotonic()
            await self._write(self._spec())
        except ApiError as error:
            self.failure = error
            self._say(f"the Lease cannot be had: {error}")
            self._lease = {}
            if error.code == 409:
                await self._reread()
            return False
        self._renewed_at, self.failure = at, None
        return True

    async def _reread(self) -> None:
        """After a conflict: who holds it now."""
        try:
            self._lease = await self._cluster.get(LEASES, *self._place)
            self._look()
        except ApiError as error:
            self.failure = error

    def _look(self) -> None:
        """Note when the Lease was last seen to change."""
        state = self._lease["metadata"]["resourceVersion"]
        if state != self._seen[0]:
            self._seen = state, self._clock.monotonic()

    def _holder(self) -> str:
        return str((self._lease.get("spec") or {}).get("holderIdentity") or "")

    def _free(self) -> bool:
        if self._holder() in ("", self._identity):
            return True
        term_s = float((self._lease.get("spec") or {}).get("leaseDurationSeconds") or self._term_s)
        return self._clock.monotonic() - self._seen[1] > term_s

    def _spec(self) -> dict[str, Any]:
        old = self._lease.get("spec") or {}
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._term_s),
            "renewTime": now,
        }
        if self._holder() == self._identity:
            return {**old, **spec}
        return {**spec, "acquireTime": now, "leaseTransitions": int(old.get("leaseTransitions") or 0) + 1}

    async def _write(self, spec: dict[str, Any]) -> None:
        self._lease = await self._cluster.update({**self._lease, "spec": spec})
        self._look()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            logger.info("%s", text)
