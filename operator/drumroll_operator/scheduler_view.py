"""A scheduler's answer to a status call as the Progress that plans are made from. Pure."""

from drumroll_proto.v1 import scheduler_pb2

from drumroll_operator.observed import Lag, Progress, ReplicaProgress

_STEP_SECONDS = "timing_s/step"
_ACCEPTED = "accepted_count"
_STORE_FAILING = "store_failing_s"
_LIVE = ("replicas", "target_policy_lag")


def progress_of(reply: scheduler_pb2.StatusReply, *, at: float) -> Progress:
    """`at`: Unix seconds of the answer."""
    times = [seconds for step in reply.recent if (seconds := step.stats.get(_STEP_SECONDS, 0.0)) > 0.0]
    return Progress(
        at=at,
        phase=reply.phase or "Starting",
        reason=reply.reason,
        steps_done=reply.steps_done,
        steps_total=reply.steps_total,
        version=reply.version,
        published=reply.newest.version if reply.newest.present else None,
        lineage=reply.lineage,
        samples=int(reply.gauges.get(_ACCEPTED, 0.0)),
        seconds_per_step=sum(times) / len(times) if times else None,
        lag=_lag(reply),
        trainer_registered=reply.trainer_registered,
        store_failing=_STORE_FAILING in reply.gauges,
        replicas=tuple(_replica(replica) for replica in reply.replicas),
        live={name: int(reply.gauges[f"live_{name}"]) for name in _LIVE if f"live_{name}" in reply.gauges},
    )


def _replica(status: scheduler_pb2.ReplicaStatus) -> ReplicaProgress:
    return ReplicaProgress(
        name=status.name,
        version=status.version if status.attested else None,
        draining=status.draining,
        tokens_in_flight=int(status.gauges.get("tokens_in_flight", status.leases)),
        silent_s=status.silent_s,
    )


def _lag(reply: scheduler_pb2.StatusReply) -> Lag | None:
    for step in reversed(reply.recent):
        stats = step.stats
        if "lag_mean" in stats:
            return Lag(int(stats["lag_min"]), stats["lag_mean"], int(stats["lag_max"]))
    return None
