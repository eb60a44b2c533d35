"""What replicas call. Each method takes the request and makes the reply, without its header.

Leases of evaluations are known by their ids and go to the evaluation's rounds, all others to the policy.
"""

from collections.abc import Sequence
from typing import TypeVar

from drumroll_planner.evaluation import is_evaluation
from drumroll_planner.policy import HandedBack, SampleReport, Verdict
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.errors import Fenced, ProtocolError
from drumroll_scheduler import translate
from drumroll_scheduler.core import Core
from drumroll_scheduler.rules import is_surplus
from drumroll_scheduler.status import Presence
from drumroll_scheduler.timeline import sample_row, weights_row

MAX_WAIT_S = 60.0

SampleT = TypeVar("SampleT", SampleReport, HandedBack)


class RolloutCalls:
    """See the module."""

    def __init__(self, core: Core, *, heartbeat_s: float, sends_away: bool = True) -> None:
        """`sends_away`: replicas with the highest numbers are told to drain when fewer are wanted."""
        self._core = core
        self._heartbeat_s = heartbeat_s
        self._sends_away = sends_away

    async def register(self, request: pb.RegisterRequest) -> pb.RegisterReply:
        """Register a replica; it attests and leases after that."""
        core = self._core
        protocol = translate.agree_protocol(request)
        name, instance = translate.replica(request.replica)
        if core.policy.is_banned(name, instance):
            raise ProtocolError(f"instance {instance} of {name} sent too many bad samples and is out of service")
        now = core.clock.monotonic()
        core.take(core.policy.register_replica(now, name, instance, request.slots))
        core.presence[name] = Presence(now)
        await core.durable()
        return pb.RegisterReply(
            protocol=protocol,
            heartbeat_s=self._heartbeat_s,
            lease_term_s=core.rules.lease_term_s,
            newest=translate.weights(core.weights_for(name)),
        )

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """Take what a replica holds; say what it should hold."""
        core = self._core
        name, instance = translate.replica(request.replica)
        now = core.clock.monotonic()
        held = {lease.lease_id: lease.tokens_done for lease in request.leases}
        attested = request.attested_version if request.attested else None
        known = core.story.replicas.get(name)
        if known is not None and known.instance != instance:
            # It was stopped while a successor of its name registered; to take it back would start a fight.
            raise Fenced(f"replica {name} instance {instance} was replaced by instance {known.instance}")
        before = known.attested if known is not None else None
        evaluated = {lease_id: held.pop(lease_id) for lease_id in list(held) if is_evaluation(lease_id)}
        answer = core.policy.heartbeat(now, name, instance, held, attested, request.draining)
        core.take(answer.records)
        missing, abort = core.evaluation.heartbeat(now, name, instance, evaluated)
        if answer.known:
            core.presence[name] = Presence(now, request.draining, dict(request.gauges))
            if attested is not None and attested != before:
                core.timeline.add(weights_row(name, attested, request.gauges, core.clock.wall()))
        await core.durable()
        return pb.HeartbeatReply(
            missing=[translate.lease_grant(grant) for grant in (*answer.missing, *missing)],
            abort=[*answer.abort, *abort],
            newest=translate.weights(core.weights_for(name)),
            drain=self._sends_away and is_surplus(name, core.story.live.get("replicas")),
            register_again=not answer.known,
        )

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply:
        """Samples to generate, as soon as there are some."""
        name, instance = translate.replica(request.replica)
        answer = await self._core.lease(
            name,
            instance,
            free_slots=request.free_slots,
            request_id=request.header.request_id,
            wait_s=min(MAX_WAIT_S, request.wait_ms / 1000.0),
        )
        return pb.LeaseReply(
            leases=[translate.lease_grant(grant) for grant in answer.grants],
            update_first=answer.update_first,
            register_again=answer.register_again,
            finished=answer.finished,
        )

    async def report(self, request: pb.ReportRequest) -> pb.ReportReply:
        """Accept samples, or say why not."""
        core = self._core
        name, instance = translate.replica(request.replica)
        samples = [translate.sample_report(sample) for sample in request.samples]
        trained, evaluated = _split(samples)
        answer = core.policy.report(core.clock.monotonic(), name, instance, trained)
        core.take(answer.records)
        verdicts = _in_order(samples, answer.verdicts, core.evaluation.report(name, instance, evaluated))
        for sample, verdict in zip(request.samples, verdicts, strict=True):
            core.count("reports_accepted" if verdict.accepted else "reports_refused")
            if verdict.accepted:
                core.timeline.add(sample_row(name, sample))
        await core.durable()
        return pb.ReportReply(verdicts=translate.verdicts(verdicts))

    async def hand_back(self, request: pb.HandBackRequest) -> pb.HandBackReply:
        """Take leases back."""
        core = self._core
        name, instance = translate.replica(request.replica)
        samples = [translate.handed_back(sample) for sample in request.samples]
        trained, evaluated = _split(samples)
        given_back = core.evaluation.hand_back(name, instance, evaluated)
        answer = core.policy.hand_back(core.clock.monotonic(), name, instance, trained, request.leaving)
        core.take(answer.records)
        await core.durable()
        return pb.HandBackReply(verdicts=translate.verdicts(_in_order(samples, answer.verdicts, given_back)))


def _split(samples: Sequence[SampleT]) -> tuple[list[SampleT], list[SampleT]]:
    """Those of training leases, those of evaluation leases."""
    trained = [sample for sample in samples if not is_evaluation(sample.lease_id)]
    return trained, [sample for sample in samples if is_evaluation(sample.lease_id)]


def _in_order(
    samples: Sequence[SampleReport | HandedBack], trained: Sequence[Verdict], evaluated: Sequence[Verdict]
) -> list[Verdict]:
    """One verdict per sample, in the order of the samples."""
    of_training, of_evaluation = iter(trained), iter(evaluated)
    return [next(of_evaluation if is_evaluation(sample.lease_id) else of_training) for sample in samples]
