"""Every call may be repeated: with the same request id, after a lost reply, after a restart of the scheduler."""

import asyncio
from typing import Any

from drumroll_planner import records as r
from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_scheduler.scripted_replica import Answer
from drumroll_scheduler.scripted_requests import (
    announce,
    attest,
    header,
    register_replica,
    register_trainer,
    report_of,
    sample_of,
    wire_sample,
)

from drumroll.samples import EntryKind

REPLICA = common_pb2.ReplicaId(name="rollout-0", instance="a")


async def test_each_call_made_twice_with_one_request_id_changes_things_once(make_world: Any) -> None:
    world = await make_world()
    scheduler = await world.start()
    rollout, trainer, operator = [await world.client(role) for role in ("rollout", "trainer", "scheduler")]

    epochs = [(await trainer.register(register_trainer("t1"))).trainer_epoch for _ in range(2)]
    assert epochs == [1, 1]
    for _ in range(2):
        await rollout.register(register_replica(REPLICA, "r1"))
        await trainer.announce(announce(1, 0))
        assert (await rollout.heartbeat(attest(REPLICA, 0))).newest.version == 0
    lease = pb.LeaseRequest(header=header("l1"), replica=REPLICA, free_slots=4, wait_ms=2000)
    first, second = await rollout.lease(lease), await rollout.lease(lease)
    assert len(first.leases) == 4
    assert first.leases == second.leases
    assert await rollout.lease(lease) == first

    stream = world.stream("rollout")
    replica = await world.replica()
    reports = []
    for grant in first.leases[:2]:
        payload = replica.payload(grant, Answer(), started=0.0)
        sample, lease_id = sample_of(grant), grant.lease_id
        ref = await stream.add(sample=sample, lease_id=lease_id, kind=EntryKind.SAMPLE, payload=payload)
        reports.append(report_of(grant, ref))
    request = pb.ReportRequest(header=header("rep"), replica=REPLICA, samples=reports)
    for _ in range(2):
        assert [verdict.accepted for verdict in (await rollout.report(request)).verdicts] == [True, True]
    # A retry that the reply cache has forgotten: another request id, the same reports.
    request.header.request_id = "rep-again"
    assert all(verdict.accepted for verdict in (await rollout.report(request)).verdicts)

    back = pb.HandedBack(
        lease_id=first.leases[2].lease_id, sample=wire_sample(first.leases[2]), reason=journal_pb2.RETURN_REASON_DRAINED
    )
    handed = pb.HandBackRequest(header=header("hb"), replica=REPLICA, samples=[back])
    for _ in range(2):
        assert [verdict.accepted for verdict in (await rollout.hand_back(handed)).verdicts] == [True]
    for _ in range(2):
        assert (await trainer.pin(pb.PinRequest(header=header("p"), holder="eval", version=0))).pinned
    for _ in range(2):
        await trainer.pin(pb.PinRequest(header=header("u"), holder="eval", version=0, unpin=True))
        await operator.set_live(pb.SetLiveRequest(header=header("s"), name="target_policy_lag", value=1))
    scheduler.app.stop()
    assert await asyncio.wait_for(scheduler.task, 20) == 143
    counts: dict[str, int] = {}
    for record in world.records():
        counts[type(record).__name__] = counts.get(type(record).__name__, 0) + 1
    expected = {"TrainerRegistered": 1, "ReplicaJoined": 1, "Announced": 1, "Attested": 1, "Leased": 4, "Accepted": 2}
    assert counts | expected | {"Returned": 1, "Pinned": 1, "Unpinned": 1, "LiveSet": 1} == counts


async def test_a_lease_call_retried_at_a_restarted_scheduler_gets_the_same_leases(make_world: Any) -> None:
    world = await make_world()
    first = await world.start()
    rollout, trainer = await world.client("rollout"), await world.client("trainer")
    await trainer.register(register_trainer("t"))
    await rollout.register(register_replica(REPLICA, "r"))
    await trainer.announce(announce(1, 0))
    await rollout.heartbeat(attest(REPLICA, 0))
    lease = pb.LeaseRequest(header=header("l"), replica=REPLICA, free_slots=3, wait_ms=2000)
    before = await rollout.lease(lease)
    await first.kill()
    await world.start()
    after = await rollout.lease(lease)
    assert list(after.leases) == list(before.leases)
    assert after.header.incarnation > before.header.incarnation
    missing = (await rollout.heartbeat(attest(REPLICA, 0))).missing
    assert {grant.lease_id for grant in missing} == {grant.lease_id for grant in before.leases}


async def test_a_job_whose_replies_get_lost_trains_each_ticket_once(make_world: Any) -> None:
    """Case X2, the scheduler's half: the server took the call, the client hears nothing and calls again."""
    world = await make_world(spec={"steps": 6}, num_prompts=16)
    scheduler = await world.start()
    switch = await world.switch()
    switch.lose_every = 25
    replica, trainer = await world.replica(port=switch.port), await world.trainer(port=switch.port)
    work = [world.run(replica.run()), world.run(trainer.run())]
    assert await world.finish(scheduler, *work, within_s=100) == 0
    assert switch.lost > 2
    trained = [ticket.ticket for decided in trainer.trained for ticket in decided.tickets]
    assert len(trained) == len(set(trained)) == 12
    accepted = [(record.ticket, record.index) for record in world.records() if isinstance(record, r.Accepted)]
    assert len(accepted) == len(set(accepted))
