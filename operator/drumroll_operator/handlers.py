"""kopf's part: it follows the RLJobs and tells of each event. Nothing is decided here.

There is no handler but that of plain events, so kopf writes neither finalizers nor annotations, and nothing of its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from drumroll_operator.cluster import RLJOBS, Access, Raw

GROUP, VERSION = RLJOBS.api_version.split("/")

_ACCESS_S = 300.0
Heard = Callable[[str, Raw], None]
"""Told of each event: ADDED, MODIFIED, DELETED or empty for a listed job; and the job."""


async def follow_jobs(
    heard: Heard,
    *,
    access: Callable[[], Awaitable[Access]],
    namespaces: list[str],
    stop: asyncio.Event,
    started: Callable[[], None],
) -> None:
    """Run kopf until `stop` is set. The kind must be served by then: kopf looks for it only once.

    `access` is asked every few minutes, since tokens change. `namespaces`: to look after; empty: all. `started` is
    called when kopf has put its signal handlers in place of others.
    """
    logging.getLogger("kopf").setLevel(logging.WARNING)
    tasks = await kopf.spawn_tasks(
        registry=_registry(heard, access),
        settings=_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )
    started()
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    # kopf's own end would cancel tasks of others as well.
    stop.set()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in done:
        await task


def _registry(heard: Heard, access: Callable[[], Awaitable[Access]]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        now = await access()
        return kopf.ConnectionInfo(
            server=now.server,
            ca_path=now.ca_file,
            certificate_path=now.certificate_file,
            private_key_path=now.key_file,
            token=now.token,
            insecure=not now.verify,
            expiration=datetime.now(UTC) + timedelta(seconds=_ACCESS_S),
        )

    async def event(event: dict[str, Any], **_: Any) -> None:
        heard(event["type"] or "", event["object"])

    kopf.on.login(registry=registry)(login)
    kopf.on.event(GROUP, VERSION, RLJOBS.plural, registry=registry)(event)
    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 90
    settings.watching.chunk_size = 100
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.enforce_retry_after = True
    # When they are used up, kopf gives up a watch for ever.
    settings.networking.error_backoffs = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0, *(8.0,) * 10_000)
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.finalizer = "drumroll.dev/unused"
    return settings
