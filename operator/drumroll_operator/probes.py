"""How the kubelet asks a job's pods: whether they have started, live, and are ready for their part.

Processes answer at a port of their own, which costs next to nothing; only the store, which has no such port, is asked
by a command, and rarely. Starting may take long: a big model, a long journal. A hang is never silent, but a slow answer
never kills: the times are generous.
"""

from typing import Any, Final

from drumroll.endpoint import Endpoint
from drumroll.job import ResolvedJob
from drumroll_operator.cluster_substrate import HEALTH_PORT
from drumroll_operator.manifests import ping_command
from drumroll_operator.substrate import Role

STARTUP_S: Final = {"store": 1800, "scheduler": 1800, "rollout": 2700, "trainer": 2700}
"""How long a start may take, in seconds."""
_STARTUP_PERIOD_S: Final = 5


def probes(job: ResolvedJob, role: Role) -> dict[str, Any]:
    """startupProbe, livenessProbe and readinessProbe of a role's container."""
    if role == "store":
        return _store_probes(job)
    return {
        "startupProbe": _http("/livez", period_s=_STARTUP_PERIOD_S, timeout_s=5, failures=_tries(role)),
        # Five minutes: what is stopped for so long is not coming back.
        "livenessProbe": _http("/livez", period_s=30, timeout_s=20, failures=10),
        "readinessProbe": _http("/readyz", period_s=5, timeout_s=5, failures=2),
    }


def _store_probes(job: ResolvedJob) -> dict[str, Any]:
    port = Endpoint.parse(job.endpoints.store).port
    answers = {"exec": {"command": ping_command(job)}}
    return {
        # Valkey listens while it still reads its file: only an answer says that it has started.
        "startupProbe": answers | _times(period_s=_STARTUP_PERIOD_S, timeout_s=10, failures=_tries("store")),
        "livenessProbe": answers | _times(period_s=60, timeout_s=30, failures=5),
        "readinessProbe": {"tcpSocket": {"port": port}} | _times(period_s=5, timeout_s=5, failures=3),
    }


def _tries(role: Role) -> int:
    return STARTUP_S[role] // _STARTUP_PERIOD_S


def _http(path: str, *, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": HEALTH_PORT}} | _times(
        period_s=period_s, timeout_s=timeout_s, failures=failures
    )


def _times(*, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {"periodSeconds": period_s, "timeoutSeconds": timeout_s, "failureThreshold": failures}
