"""Is this operator alive, and does it work? Checks by name, each a sentence where something is wrong; the HTTP server.

Alive: no task hangs. A restart may help where this fails, and nowhere else: a server that is down, or a missing right,
makes the operator not ready, but leaves it alive.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from drumroll.clock import Clock, SystemClock

Check = Callable[[], str | None]
"""What is wrong; None: nothing."""

_LAG_EVERY_S = 0.5


class LoopLag:
    """How late the event loop runs what is due: the worst of the last minute."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._worst: list[tuple[float, float]] = []

    @property
    def worst_s(self) -> float:
        """Seconds."""
        now = self._clock.monotonic()
        self._worst = [(at, lag) for at, lag in self._worst if now - at < 60.0]
        return max((lag for _, lag in self._worst), default=0.0)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = self._clock.monotonic() + _LAG_EVERY_S
            await asyncio.sleep(_LAG_EVERY_S)
            lag = max(0.0, self._clock.monotonic() - due)
            if lag > 0.01:
                self._worst.append((due, lag))


class Health:
    """The checks."""

    def __init__(self) -> None:
        self._alive: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def alive_if(self, name: str, check: Check) -> None:
        """Add a check of life."""
        self._alive[name] = check

    def ready_if(self, name: str, check: Check) -> None:
        """Add a check of readiness."""
        self._ready[name] = check

    def dead(self) -> Mapping[str, str]:
        """What a restart may mend, by check."""
        return _wrong(self._alive)

    def unready(self) -> Mapping[str, str]:
        """What keeps the operator from working, by check."""
        return {**self.dead(), **_wrong(self._ready)}


def _wrong(checks: Mapping[str, Check]) -> dict[str, str]:
    found = {name: check() for name, check in checks.items()}
    return {name: text for name, text in found.items() if text is not None}


class HealthServer:
    """Serves /healthz, /readyz and /metrics."""

    def __init__(self, health: Health, page: Callable[[], bytes]) -> None:
        self._health = health
        self._page = page
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one where 0 was given.

        Raises:
            OSError: the port is taken.
        """
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        listening: Any = self._runner.addresses[0]
        return int(listening[1])

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return _answer(self._health.dead())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(self._health.unready())

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _answer(wrong: Mapping[str, str]) -> web.Response:
    lines = [f"{name}: {text}" for name, text in wrong.items()] or ["ok"]
    return web.Response(text="\n".join(lines) + "\n", status=503 if wrong else 200)
