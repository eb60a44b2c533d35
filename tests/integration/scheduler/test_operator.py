"""What a job's operator relies on: its token, live values, the health port, the report at the end."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_scheduler.scripted_replica import Answer
from drumroll_scheduler.scripted_requests import register_replica

from drumroll.embedded import free_port
from drumroll.job import ResolvedJob
from drumroll.rpc_status import AccessRefused
from drumroll.testing import eventually


async def get(port: int, path: str) -> tuple[int, str] | None:
    """Status and body of an HTTP answer; None where nobody listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    writer.write(f"GET {path} HTTP/1.1\r\nHost: pod\r\nUser-Agent: kube-probe\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body.strip()


def with_spec(job: ResolvedJob, **changes: Any) -> ResolvedJob:
    """A new revision of the job."""
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes)})


async def test_the_operator_sees_and_sets_and_does_no_more(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    operator = await world.client("operator")
    await operator.set_live(pb.SetLiveRequest(name="steps", value=7))
    status = await operator.status(pb.StatusRequest())
    assert (status.steps_total, dict(status.live)) == (7, {"steps": 7})
    with pytest.raises(AccessRefused, match="Lease is not for the role operator"):
        await operator.lease(pb.LeaseRequest(replica=common_pb2.ReplicaId(name="rollout-0", instance="a")))


async def test_a_live_value_that_is_so_already_is_not_journaled_again(make_world: Any) -> None:
    world = await make_world()
    scheduler = await world.start()
    operator = await world.client("operator")
    await operator.set_live(pb.SetLiveRequest(name="replicas", value=3))
    before = scheduler.app.core.journal.last_seq
    await operator.set_live(pb.SetLiveRequest(name="replicas", value=3))
    assert scheduler.app.core.journal.last_seq == before
    await operator.set_live(pb.SetLiveRequest(name="replicas", value=2))
    assert scheduler.app.core.journal.last_seq > before


async def test_where_the_operator_scales_nobody_is_sent_away_by_number(make_world: Any) -> None:
    world = await make_world()
    world.job = world.job.model_copy(update={"operator_scales": True})
    await world.start()
    rollout, operator = await world.client("rollout"), await world.client("operator")
    replica = common_pb2.ReplicaId(name="rollout-4", instance="a")
    await rollout.register(register_replica(replica, "r"))
    await operator.set_live(pb.SetLiveRequest(name="replicas", value=1))
    assert not (await rollout.heartbeat(pb.HeartbeatRequest(replica=replica))).drain


@pytest.mark.parametrize("revision", [{"steps": 4}, {"steps": 6, "target_policy_lag": 0}, {"steps": 9}])
async def test_the_newest_live_value_wins_over_any_revision_of_the_job(
    revision: dict[str, Any], make_world: Any
) -> None:
    """A scheduler that is replaced reads the newest ConfigMap, or an older one; neither is refused."""
    world = await make_world()
    first = await world.start()
    replica = await world.replica(script=lambda grant: Answer(reward=float(grant.samples[0].index), seconds=0.05))
    trainer, operator = await world.trainer(), await world.client("operator")
    work = [world.run(replica.run()), world.run(trainer.run())]
    await operator.set_live(pb.SetLiveRequest(name="steps", value=6))
    await operator.set_live(pb.SetLiveRequest(name="target_policy_lag", value=2))
    await eventually(lambda: len(trainer.trained) >= 1, 30.0, "a step")
    await first.kill()
    second = await world.start(job=with_spec(world.job, **revision))
    status = await operator.status(pb.StatusRequest())
    assert (status.steps_total, dict(status.live)) == (6, {"steps": 6, "target_policy_lag": 2})
    assert await world.finish(second, *work) == 0
    assert len(world.metrics()) == 6


async def test_the_end_is_reported_for_whoever_looks_after_the_pod(
    make_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, port = tmp_path / "termination-log", free_port()
    monkeypatch.setenv("DRUMROLL_TERMINATION_FILE", str(file))
    monkeypatch.setenv("DRUMROLL_HEALTH_PORT", str(port))
    world = await make_world()
    scheduler = await world.start()
    assert await eventually(lambda: get(port, "/readyz"), 5.0) == (200, "ok")
    assert not file.exists()
    replica, trainer = await world.replica(), await world.trainer()
    assert await world.finish(scheduler, world.run(replica.run()), world.run(trainer.run())) == 0
    report = json.loads(file.read_text())
    assert (report["phase"], report["step"], report["steps"], report["version"]) == ("Complete", 4, 4, 4)
    assert set(report["lag"]) == {"min", "mean", "max"}
    assert report["samples"] >= 16


async def test_a_failed_job_ends_its_scheduler_in_good_order(
    make_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRUMROLL_TERMINATION_FILE", str(tmp_path / "termination-log"))
    world = await make_world(spec={"algorithm": {"dynamicSampling": True, "maxSamplingTries": 1}})
    scheduler = await world.start()
    replica, trainer = await world.replica(script=lambda grant: Answer(reward=1.0)), await world.trainer()
    world.run(replica.run())
    world.run(trainer.run())
    assert await asyncio.wait_for(scheduler.task, 60) == 0
    report = json.loads((tmp_path / "termination-log").read_text())
    assert report["phase"] == "Failed"
    assert "equal rewards" in report["reason"]
