"""What `drumroll status` and `top` draw, and what they tell to do next."""

from datetime import UTC
from typing import Any, get_args

import pytest
from drumroll_cli.cluster import advice
from drumroll_cli.cluster.advice import next_steps
from drumroll_cli.cluster.fleet import Fleet, Rates, fleet
from drumroll_cli.cluster.objects import EventLine, JobView, PodLine, job_view
from drumroll_cli.cluster.portrait import Portrait, jobs_table, portrait
from drumroll_operator.reasons import documented
from drumroll_proto.v1 import scheduler_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from drumroll.api.editing import edited
from drumroll.api.status import Phase, RLJobStatus

NOW = 1_767_229_200.0
JOB: dict[str, Any] = {
    "metadata": {"name": "small", "namespace": "research", "uid": "u1", "generation": 1},
    "spec": {"maxPolicyLag": 4, "steps": 80, "rollout": {"replicas": 3}},
    "status": {"observedGeneration": 1, "phase": "Running"},
}

COUNT = st.integers(0, 10**6)
STAMP = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat().replace("+00:00", "Z"))
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["Accepted", "Admitted", "RolloutReady", "Ready", "Suspended", "Complete", "Failed"]),
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "reason": st.sampled_from(sorted(documented())),
        "message": st.text(max_size=900),
        "lastTransitionTime": STAMP,
    }
)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "observedGeneration": COUNT,
        "phase": st.sampled_from(get_args(Phase)),
        "conditions": st.lists(CONDITION, max_size=7),
        "step": COUNT,
        "steps": COUNT,
        "version": COUNT,
        "policyLag": st.fixed_dictionaries({"min": COUNT, "mean": st.floats(0, 1e6), "max": COUNT}),
        "samples": COUNT,
        "etaSeconds": COUNT,
        "gpus": COUNT,
        "rollout": st.fixed_dictionaries({}, optional={"replicas": COUNT, "ready": COUNT, "draining": COUNT}),
        "trainer": st.fixed_dictionaries({}, optional={"replicas": COUNT, "ready": COUNT}),
        "restarts": st.lists(
            st.fixed_dictionaries(
                {"role": st.just("rollout")},
                optional={"count": COUNT, "lastReason": st.text(max_size=20), "lastMessage": st.text(max_size=900)},
            ),
            max_size=1,
        ),
        "jobDir": st.text(max_size=50),
        "message": st.text(max_size=900),
        "startTime": STAMP,
        "endTime": STAMP,
    },
)


def conditions(*items: tuple[str, str, str]) -> list[dict[str, str]]:
    since = "2026-01-01T00:00:00Z"
    return [
        {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since}
        for kind, status, reason in items
    ]


def job(**changes: Any) -> JobView:
    return job_view(edited(JOB, {f"status.{name}": value for name, value in changes.items()}))


def drawn(view: RenderableType, width: int = 120) -> str:
    console = Console(width=width, force_terminal=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def rollout(index: int = 0, **changes: Any) -> PodLine:
    fields: dict[str, Any] = {
        "name": f"small-rollout-{index}",
        "uid": str(index),
        "role": "rollout",
        "index": index,
        "state": "Running",
        "why": "",
        "ready": True,
        "node": "node-1",
        "gpus": 1,
        "created": NOW - 60,
        "phase": "Running",
    }
    return PodLine(**(fields | changes))


def test_a_portrait_shows_what_matters() -> None:
    view = job(
        step=17,
        version=18,
        policyLag={"min": 0, "mean": 1.25, "max": 3},
        samples=4736,
        etaSeconds=3000,
        gpus=8,
        rollout={"replicas": 3, "ready": 2, "draining": 1},
        restarts=[{"role": "rollout", "count": 2, "lastReason": "OOMKilled", "lastMessage": "over 2Gi"}],
        conditions=conditions(("Ready", "False", "FewerReplicas")),
        jobDir="/var/lib/drumroll/research/small-u1",
    )
    event = EventLine("Warning", "OOMKilled", "small", "rollout-1 went over", 3, NOW - 5)
    text = drawn(portrait(Portrait(view, (rollout(),), (event,), NOW, ("Events of pods are not shown",))))
    for part in (
        *("17/80", "about 50m left", "0 / 1.25 / 3 min / mean / max  (bound 4)", "4,736"),
        *("2/3 ready, 3 wanted, 1 draining", "FewerReplicas", "small-rollout-0", "over 2Gi"),
        *("rollout-1 went over (x3)", "note: Events of pods", "/var/lib/drumroll/research/small-u1", "What next"),
    ):
        assert part in text, part


@given(STATUSES, st.booleans(), st.integers(20, 200))
@settings(max_examples=60, deadline=None)
def test_every_status_can_be_drawn(status: dict[str, Any], deleting: bool, width: int) -> None:
    RLJobStatus.model_validate(status)
    raw = {**JOB, "status": status}
    view = job_view(edited(raw, {"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}) if deleting else raw)
    assert "small" in drawn(jobs_table([view], NOW, namespaces=True), 200)
    assert drawn(portrait(Portrait(view, (), (), NOW)), width)
    assert next_steps(view)


def test_a_long_message_keeps_both_ends() -> None:
    text = drawn(portrait(Portrait(job(message="begin " + "x" * 2_000 + " end"), (), (), NOW)))
    assert "begin" in text
    assert " end" in text
    assert len(text) < 2_000


@pytest.mark.parametrize("reason", sorted(advice._LOOK))
def test_advice_is_about_reasons_that_exist(reason: str) -> None:
    assert reason in documented()


def test_the_first_thing_that_is_missing_is_told() -> None:
    view = job(
        phase="Pending",
        conditions=conditions(
            ("Accepted", "True", "Accepted"),
            ("Admitted", "False", "QuotaExceeded"),
            ("TrainerReady", "False", "NotCreated"),
            ("Degraded", "True", "QuotaExceeded"),
        ),
    )
    steps = next_steps(view)
    assert steps[0].startswith("QuotaExceeded: A ResourceQuota leaves no room")
    assert steps[1] == "kubectl describe quota -n research"
    assert len([step for step in steps if step.startswith("QuotaExceeded")]) == 1


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"phase": "Complete", "jobDir": "/d"}, "weights and checkpoints are on its volume in /d"),
        (
            {"phase": "Failed", "conditions": conditions(("Failed", "True", "UserError"))},
            "drumroll cancel small -n research",
        ),
        ({"phase": "Suspended", "conditions": conditions(("Suspended", "True", "Suspended"))}, "drumroll resume small"),
        ({}, "no operator has looked at the job yet"),
    ],
)
def test_each_phase_has_its_next_step(changes: dict[str, Any], part: str) -> None:
    assert any(part in step for step in next_steps(job(**changes)))


def replica(name: str, *, tokens: float, instance: str = "a", **fields: Any) -> scheduler_pb2.ReplicaStatus:
    values: dict[str, Any] = {"attested": True, "version": 16, "leases": 30, "slots": 64, "silent_s": 0.4} | fields
    return scheduler_pb2.ReplicaStatus(
        name=name, instance=instance, gauges={"tokens_total": tokens, "kv_usage": 0.25}, **values
    )


def status_of(*replicas: scheduler_pb2.ReplicaStatus) -> scheduler_pb2.StatusReply:
    step = scheduler_pb2.StepStatus(step=16, version=17, stats={"lag_min": 0, "lag_mean": 1.5, "lag_max": 3})
    tickets = {"leased": 4, "streamed": 5, "decided": 6, "trained": 7}
    return scheduler_pb2.StatusReply(
        version=18, steps_done=17, steps_total=80, replicas=replicas, recent=[step], tickets=tickets
    )


def test_a_fleet_shows_each_replica_beside_its_pod() -> None:
    status = status_of(replica("rollout-0", tokens=0.0), replica("rollout-7", tokens=0.0, draining=True))
    view = Fleet(
        job(), [rollout(), rollout(1, ready=False, state="Pending", why="no GPUs")], status, {"rollout-0": 99.0}, NOW
    )
    text = drawn(fleet(view), 160)
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("rollout-")}
    assert rows["rollout-0"].split()[1:] == ["Running", "yes", "16", "2", "30/64", "99", "25", "%", "0s", "ago", "60s"]
    assert "no GPUs" in rows["rollout-1"]
    assert "draining" in rows["rollout-7"]
    assert "lag 0 / 1.50 / 3 of 4" in text
    assert "generating 4, waiting 5, decided 6, uncovered 7" in text
    assert "17/80" in text


def test_without_the_schedulers_word_the_pods_are_shown() -> None:
    text = drawn(fleet(Fleet(job(step=3), [rollout()], None, {}, NOW, "figures are not shown: ann may not")), 160)
    assert "rollout-0" in text
    assert "ann may not" in text


def test_rates_come_from_two_readings_of_one_process() -> None:
    rates = Rates()
    assert rates.add(status_of(replica("rollout-0", tokens=100.0)), 0.0) == {}
    assert rates.add(status_of(replica("rollout-0", tokens=150.0)), 1.0) == {}
    assert rates.add(status_of(replica("rollout-0", tokens=500.0)), 4.0) == {"rollout-0": 100.0}
    again = replica("rollout-0", tokens=10.0, instance="b")
    assert rates.add(status_of(again), 5.0) == {}
    assert rates.add(status_of(replica("rollout-0", tokens=30.0, instance="b")), 7.0) == {"rollout-0": 10.0}
