"""`python -m drumroll_operator`: looks after the RLJobs of a cluster, or of some namespaces.

Exit codes: 0 after SIGTERM, 2 for a mistake in the settings, 75 where another operator has taken over or may have, 1
for all else. Whoever loses the Lease ends at once, without a word to the API server.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drumroll.errors import EXIT_FENCED, EXIT_INTERNAL, EXIT_OK, EXIT_USER, UserError
from drumroll.logs import set_up
from drumroll_operator.app import WORKERS, Operator
from drumroll_operator.cluster import RLJOBS, ApiError
from drumroll_operator.handlers import Heard, follow_jobs
from drumroll_operator.health import Health, HealthServer
from drumroll_operator.kube_cluster import KubeCluster, load_configuration
from drumroll_operator.leader import Leader
from drumroll_operator.metrics import Metrics
from drumroll_operator.rendering import Renderer
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.tokens import read_key

logger = logging.getLogger("drumroll_operator")

_PORT = 8080
_SERVED_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    settings: Path
    lease: tuple[str, str] | None
    """Namespace and name; None: act without asking anybody."""
    kubeconfig: str | None
    host: str
    port: int
    workers: int
    log_level: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop; the exit code."""
    options = parse(arguments)
    set_up("operator", level=getattr(logging, options.log_level.upper()))
    try:
        return asyncio.run(run(options))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; ends the process with a usage message where it is wrong."""
    parser = argparse.ArgumentParser("drumroll-operator", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--settings", type=Path, required=True, help="YAML file with the operator's settings")
    parser.add_argument("--lease", type=_place, metavar="NAMESPACE/NAME", help="act only while holding this Lease")
    parser.add_argument("--kubeconfig", help="how to reach the API server; default: this pod's service account")
    parser.add_argument("--host", default="", help="address of /healthz, /readyz and /metrics; default: all")
    parser.add_argument("--port", type=int, default=_PORT, help=f"port of the same; default {_PORT}, 0: a free one")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"jobs in work at once; default {WORKERS}")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return Options(**vars(parser.parse_args(arguments)))


def _place(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAMESPACE/NAME")
    return namespace, name


async def run(options: Options) -> int:
    """Serve health, wait for the Lease, then work until SIGTERM or the loss of the Lease.

    Raises:
        UserError: settings, key or kubeconfig are wrong.
    """
    settings = OperatorSettings.load(options.settings)
    renderer = Renderer(settings, read_key(settings.key_file))
    metrics, health = Metrics(), Health()
    cluster = KubeCluster(await load_configuration(options.kubeconfig), observer=metrics.requested)
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    server = HealthServer(health, metrics.page)
    stop = asyncio.Event()
    _on_signals(stop)
    try:
        port = await _serve(server, options)
        logger.info("serving /healthz, /readyz and /metrics on port %d", port)
        leader = Leader(cluster, *options.lease, identity) if options.lease is not None else None
        if leader is not None and not await _acquired(leader, health, metrics, stop):
            return EXIT_OK
        operator = Operator(
            cluster,
            renderer,
            namespaces=settings.watch_namespaces,
            identity=identity,
            may_act=lambda: leader is None or leader.leads,
            metrics=metrics,
            health=health,
            workers=options.workers,
        )
        return await _lead(operator, leader, cluster, settings, stop)
    finally:
        await server.stop()
        await cluster.close()


async def _serve(server: HealthServer, options: Options) -> int:
    try:
        return await server.start(options.host or "0.0.0.0", options.port)
    except OSError as error:
        raise UserError(f"port {options.port} cannot be listened on: {error}; choose another by --port") from error


async def _acquired(leader: Leader, health: Health, metrics: Metrics, stop: asyncio.Event) -> bool:
    """Wait for the Lease; False: told to stop meanwhile."""
    metrics.gauge("leads", "1 where this operator holds the Lease.", (), lambda: [((), float(leader.leads))])
    health.ready_if("lease", lambda: str(leader.failure) if leader.failure is not None else None)
    acquiring, stopped = asyncio.ensure_future(leader.acquire()), asyncio.ensure_future(stop.wait())
    await asyncio.wait([acquiring, stopped], return_when=asyncio.FIRST_COMPLETED)
    for waiting in (acquiring, stopped):
        waiting.cancel()
    await asyncio.gather(acquiring, stopped, return_exceptions=True)
    if stop.is_set():
        await leader.release()
    return not stop.is_set()


async def _lead(
    operator: Operator, leader: Leader | None, cluster: KubeCluster, settings: OperatorSettings, stop: asyncio.Event
) -> int:
    keeping = asyncio.create_task(_keep(leader)) if leader is not None else None
    kopf_stop = asyncio.Event()
    logger.info("looking after %s", ", ".join(settings.watch_namespaces) or "all namespaces")

    async def follow(heard: Heard) -> None:
        if not await _served(cluster, kopf_stop):
            return
        await follow_jobs(
            heard,
            access=cluster.access,
            namespaces=settings.watch_namespaces,
            stop=kopf_stop,
            started=lambda: _on_signals(stop),
        )

    try:
        await operator.run(follow, stop=stop, last=kopf_stop)
    finally:
        if keeping is not None and leader is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await leader.release()
    return EXIT_OK if stop.is_set() else EXIT_INTERNAL


async def _served(cluster: KubeCluster, stop: asyncio.Event) -> bool:
    """Wait for the resource, which the chart may have made a moment ago; False: `stop` was set meanwhile."""
    said = False
    while not stop.is_set():
        try:
            if await cluster.serves(RLJOBS):
                return True
            problem = f"the API server does not serve {RLJOBS.plural} of {RLJOBS.api_version}"
        except ApiError as error:
            problem = str(error)
        if not said:
            logger.warning("%s; waiting", problem)
        said = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SERVED_EVERY_S)
    return False


async def _keep(leader: Leader) -> None:
    """Renew the Lease; its loss ends the process in the middle of whatever it does."""
    await leader.keep()
    logging.shutdown()
    os._exit(EXIT_FENCED)


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


if __name__ == "__main__":
    sys.exit(main())
