"""The edge: tokens, uids, protocol versions, unknown values; status, watch and live values; signals."""

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerStub
from drumroll_scheduler.app import Settings
from drumroll_scheduler.scripted_replica import Answer
from drumroll_scheduler.scripted_requests import announce, attest, header, register_replica, register_trainer

from drumroll.embedded import free_port
from drumroll.errors import ProtocolError, SchedulerUnavailable, TemporaryError, UserError
from drumroll.rpc import SchedulerClient
from drumroll.rpc_status import AccessRefused
from drumroll.testing import eventually

REPLICA = common_pb2.ReplicaId(name="rollout-0", instance="a")


async def raw_error(world: Any, token: str | None, request: pb.StatusRequest) -> grpc.aio.AioRpcError:
    """What a hand-made call is refused with."""
    metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
    async with grpc.aio.insecure_channel(world.job.endpoints.scheduler) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await SchedulerStub(channel).Status(request, metadata=metadata, timeout=10)
        return refusal.value


async def test_calls_without_a_token_of_this_job_are_refused(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    right = pb.StatusRequest(header=common_pb2.CallHeader(job_uid=world.job.uid, request_id="x"))
    for token in (None, "", "wrong"):
        error = await raw_error(world, token, right)
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_role_may_make_its_own_calls_alone(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    rollout, trainer, viewer = [await world.client(role) for role in ("rollout", "trainer", "viewer")]
    with pytest.raises(AccessRefused, match="NextStep is not for the role rollout; it is for trainer"):
        await rollout.next_step(pb.NextStepRequest())
    with pytest.raises(AccessRefused, match="Lease is not for the role trainer"):
        await trainer.lease(pb.LeaseRequest(replica=REPLICA))
    with pytest.raises(AccessRefused, match="Register as trainer is not for the role rollout"):
        await rollout.register(register_trainer("t"))
    with pytest.raises(AccessRefused, match="SetLive is not for the role viewer"):
        await viewer.set_live(pb.SetLiveRequest(name="steps", value=5))


async def test_calls_of_another_job_or_without_an_id_are_refused(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    stranger = SchedulerClient(world.job.model_copy(update={"uid": "job-2"}), "viewer")
    with pytest.raises(ProtocolError, match=r"job_uid is 'job-2', but this is the scheduler of 'job-1'"):
        await stranger.status(pb.StatusRequest())
    await stranger.close()
    token = token_of(world, "viewer")
    error = await raw_error(world, token, pb.StatusRequest(header=common_pb2.CallHeader(job_uid=world.job.uid)))
    assert "request_id is empty" in str(error.details())


def token_of(world: Any, role: str) -> str:
    return Path(world.job.secrets.token_files[role]).read_text()


async def test_unknown_values_are_refused_by_name(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    rollout, trainer = await world.client("rollout"), await world.client("trainer")
    request = register_replica(REPLICA, "r")
    request.role = 7  # type: ignore[assignment] - a value of a newer protocol
    with pytest.raises(ProtocolError, match="role has the unknown value 7"):
        await rollout.register(request)
    request = register_replica(REPLICA, "r")
    request.min_protocol = request.max_protocol = 9
    with pytest.raises(ProtocolError, match="speaks protocol versions 9 to 9, this scheduler speaks 1"):
        await rollout.register(request)
    with pytest.raises(ProtocolError, match="a name and an instance"):
        await rollout.register(register_replica(common_pb2.ReplicaId(name="rollout-0"), "r"))
    await rollout.register(register_replica(REPLICA, "r"))
    back = pb.HandedBack(lease_id="1-1", reason=99)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"samples\.reason has the unknown value 99"):
        await rollout.hand_back(pb.HandBackRequest(replica=REPLICA, samples=[back]))
    await trainer.register(register_trainer("t"))
    with pytest.raises(ProtocolError, match="trainer epoch 0 was never given"):
        await trainer.next_step(pb.NextStepRequest())
    with pytest.raises(ProtocolError, match="trainer epoch 5 was never given"):
        await trainer.announce(announce(5, 0))
    with pytest.raises(ProtocolError, match="holder is empty"):
        await trainer.pin(pb.PinRequest(version=0))


async def test_a_replica_that_is_unknown_is_told_to_register_again(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    rollout = await world.client("rollout")
    assert (await rollout.heartbeat(pb.HeartbeatRequest(replica=REPLICA))).register_again
    assert (await rollout.lease(pb.LeaseRequest(replica=REPLICA, free_slots=1, wait_ms=100))).register_again


async def test_a_replica_with_nothing_to_do_waits_and_is_told_to_update_when_it_can(make_world: Any) -> None:
    world = await make_world(spec={"maxPolicyLag": 0})
    await world.start()
    rollout, trainer = await world.client("rollout"), await world.client("trainer")
    await trainer.register(register_trainer("t"))
    await rollout.register(register_replica(REPLICA, "r", slots=9))
    empty = await rollout.lease(pb.LeaseRequest(replica=REPLICA, free_slots=1, wait_ms=100))
    assert not empty.leases
    assert not empty.finished
    await trainer.announce(announce(1, 0))
    await rollout.heartbeat(attest(REPLICA, 0))
    first = await rollout.lease(pb.LeaseRequest(replica=REPLICA, free_slots=9, wait_ms=2000))
    assert {grant.version for grant in first.leases} == {0}
    back = [
        pb.HandedBack(lease_id=grant.lease_id, reason=journal_pb2.RETURN_REASON_UNSTARTED) for grant in first.leases
    ]
    reply = await rollout.hand_back(pb.HandBackRequest(replica=REPLICA, samples=back, leaving=True))
    assert all(verdict.accepted for verdict in reply.verdicts)


async def test_two_waiting_calls_of_one_replica_are_both_answered(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    rollout = await world.client("rollout")
    await rollout.register(register_replica(REPLICA, "r"))
    calls = [rollout.lease(pb.LeaseRequest(replica=REPLICA, free_slots=1, wait_ms=300)) for _ in range(2)]
    assert [len(reply.leases) for reply in await asyncio.gather(*calls)] == [0, 0]


async def test_status_and_watch_follow_a_job_to_its_end(make_world: Any) -> None:
    world = await make_world()
    scheduler = await world.start()
    viewer, operator = await world.client("viewer"), await world.client("scheduler")
    starting = await viewer.status(pb.StatusRequest())
    assert (starting.phase, starting.reason) == ("Starting", "waits for the trainer to register")
    seen: list[pb.StatusReply] = []

    async def follow() -> None:
        async for reply in viewer.watch(pb.WatchRequest()):
            seen.append(reply.status)

    following = world.run(follow())
    replica = await world.replica(script=lambda grant: Answer(reward=float(grant.samples[0].index), seconds=0.4))
    trainer = await world.trainer()
    await operator.set_live(pb.SetLiveRequest(name="steps", value=6))
    with pytest.raises(UserError, match="cannot be changed while the job runs"):
        await operator.set_live(pb.SetLiveRequest(name="seed", value=6))
    work = [world.run(replica.run()), world.run(trainer.run()), following]
    assert await world.finish(scheduler, *work) == 0
    last = seen[-1]
    assert (last.phase, last.steps_done, last.steps_total, last.covered_step) == ("Complete", 6, 6, 6)
    assert [step.step for step in last.recent] == list(range(6))
    assert last.recent[-1].stats["loss"] == 0.5
    assert last.tickets["covered"] == 12
    assert [status.name for status in last.replicas] == ["rollout-0"]
    assert "Running" in {status.phase for status in seen}


async def test_replicas_over_the_live_number_are_told_to_drain(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    rollout, operator = await world.client("rollout"), await world.client("scheduler")
    for name in ("rollout-0", "rollout-1"):
        await rollout.register(register_replica(common_pb2.ReplicaId(name=name, instance="a"), name))
    await operator.set_live(pb.SetLiveRequest(name="replicas", value=1))
    drains = [
        (await rollout.heartbeat(pb.HeartbeatRequest(replica=common_pb2.ReplicaId(name=name, instance="a")))).drain
        for name in ("rollout-0", "rollout-1")
    ]
    assert drains == [False, True]


async def test_a_replica_that_sends_bad_samples_is_out_of_service(make_world: Any) -> None:
    """Case V4, the scheduler's half."""
    world = await make_world(spec={"scheduler": {"maxAttempts": 50}})
    scheduler = await world.start()
    rollout, trainer = await world.client("rollout"), await world.client("trainer")
    await trainer.register(register_trainer("t"))
    await trainer.announce(announce(1, 0))
    await rollout.register(register_replica(REPLICA, "r"))
    await rollout.heartbeat(attest(REPLICA, 0))
    for number in range(3):
        leased = await rollout.lease(pb.LeaseRequest(header=header(f"l{number}"), replica=REPLICA, free_slots=1))
        while not leased.leases:
            leased = await rollout.lease(pb.LeaseRequest(replica=REPLICA, free_slots=1, wait_ms=500))
        back = pb.HandedBack(
            lease_id=leased.leases[0].lease_id, reason=journal_pb2.RETURN_REASON_BAD_SAMPLE, detail="NaN"
        )
        await rollout.hand_back(pb.HandBackRequest(replica=REPLICA, samples=[back]))
    core = scheduler.app.core
    await eventually(lambda: "rollout-0" not in core.story.replicas, 5.0, "the replica's leave")
    assert "ReplicaBadSamples" in {note.reason for note in core.story.notes}
    with pytest.raises(ProtocolError, match="out of service"):
        await rollout.register(register_replica(REPLICA, "again"))


async def test_a_store_that_is_away_makes_calls_wait_and_no_more(make_world: Any) -> None:
    world = await make_world()
    scheduler = await world.start()
    replica, trainer = await world.replica(script=lambda grant: Answer(reward=1.0, seconds=0.05)), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    await eventually(lambda: len(trainer.trained) >= 1, 30.0, "a step")
    await world.store.kill()
    await world.store.start()
    assert await world.finish(scheduler, *work) == 0


async def test_a_taken_port_is_waited_for_and_then_an_error(make_world: Any) -> None:
    world = await make_world()
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(world.job.endpoints.scheduler.rpartition(":")[2])))
        other.listen()
        with pytest.raises(TemporaryError, match="cannot listen at 127"):
            await world.start(settings=Settings(bind_s=0.0))
        waiting = asyncio.create_task(world.start(settings=Settings(bind_s=30.0)))
        await eventually(lambda: len(world.schedulers) == 2 and world.schedulers[1].app.core, 10.0, "an open ledger")
    assert (await waiting).app.port


async def test_sigterm_ends_a_scheduler_with_143_and_a_missing_job_file_with_2(make_world: Any) -> None:
    world = await make_world()
    port = free_port()
    environment = world.write_job(world.job_at(port))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "drumroll_scheduler", env=environment)
    viewer = await world.client("viewer", port=port)
    await viewer.status(pb.StatusRequest(), deadline_s=60)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == 143
    with pytest.raises(SchedulerUnavailable, match=f"127.0.0.1:{port} after"):
        await viewer.status(pb.StatusRequest(), deadline_s=0.5)
    broken = {**environment, "DRUMROLL_JOB": "nowhere.json"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "drumroll_scheduler", env=broken, stderr=asyncio.subprocess.PIPE
    )
    _, log = await process.communicate()
    assert process.returncode == 2
    assert b"nowhere.json is not a resolved job" in log
