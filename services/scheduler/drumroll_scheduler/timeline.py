"""Rows of timeline.jsonl: what each replica and the trainer did when. All times are Unix seconds.

    sample    replica, start, end, tokens, version (oldest), newest_version, ticket, index, evaluation
    weights   replica, version, start, end
    step      step, version (made), start, end
    publish   version, step, time
    decision  step, groups, time
    queue     time, gauges
    event     reason, message, time

Only for pictures: rows may be missing after a crash.
"""

from collections.abc import Mapping
from typing import Any

from drumroll_planner import records as r
from drumroll_planner.evaluation import is_evaluation
from drumroll_proto.v1 import scheduler_pb2

LOAD_STARTED = "weights_load_started_at"
LOAD_FINISHED = "weights_load_finished_at"
"""Gauges of a heartbeat that say when the newest weight load began and ended."""


def sample_row(replica: str, report: scheduler_pb2.SampleReport) -> dict[str, Any]:
    """The time in which a replica made a sample."""
    return {
        "kind": "sample",
        "replica": replica,
        "start": report.started_at,
        "end": report.finished_at,
        "tokens": report.num_tokens,
        "version": report.oldest_version,
        "newest_version": report.newest_version,
        "ticket": [report.sample.ticket.epoch, report.sample.ticket.ordinal],
        "index": report.sample.index,
        "evaluation": is_evaluation(report.lease_id),
    }


def weights_row(replica: str, version: int, gauges: Mapping[str, float], now: float) -> dict[str, Any]:
    """A weight load; without times of its own it is a point at `now`."""
    return {
        "kind": "weights",
        "replica": replica,
        "version": version,
        "start": gauges.get(LOAD_STARTED, now),
        "end": gauges.get(LOAD_FINISHED, now),
    }


def step_row(request: scheduler_pb2.CommitRequest) -> dict[str, Any]:
    """A step of the trainer."""
    return {
        "kind": "step",
        "step": request.step,
        "version": request.version,
        "start": request.started_at,
        "end": request.finished_at,
    }


def queue_row(gauges: Mapping[str, float], now: float) -> dict[str, Any]:
    """How full the queue is."""
    return {"kind": "queue", "time": now, "gauges": dict(gauges)}


def record_row(record: r.Record, now: float) -> dict[str, Any] | None:
    """The row of a record that a picture shows, if it is one."""
    match record:
        case r.Decided():
            return {"kind": "decision", "step": record.step, "groups": len(record.tickets), "time": now}
        case r.Announced():
            return {"kind": "publish", "version": record.version, "step": record.step, "time": now}
        case r.Rewound():
            return {"kind": "event", "reason": "Rewound", "message": record.reason, "time": now}
        case r.Noted():
            return {"kind": "event", "reason": record.reason, "message": record.message, "time": now}
        case r.ReplicaJoined():
            return {"kind": "event", "reason": "ReplicaJoined", "message": record.replica, "time": now}
        case r.ReplicaLeft():
            return {"kind": "event", "reason": "ReplicaLeft", "message": record.replica, "time": now}
        case _:
            return None
