"""The scheduler's own policy as the dispatcher: every fact goes through `Policy`, as in the scheduler service.

Replicas and trainer speak to it as the real ones do: register, heartbeat, ask, report, next step, trained, covered.
Calls take no time, and what a heartbeat would tell a replica later (an aborted lease) it knows at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from drumroll.errors import JobFailed
from drumroll_planner import records as r
from drumroll_planner.answers import SampleReport
from drumroll_planner.policy import Policy
from drumroll_planner.rules import Plan
from drumroll_planner.sim.dispatcher import Chosen
from drumroll_planner.sim.fleet import Fleet
from drumroll_planner.sim.request import Request

_BYTES_PER_TOKEN = 12


@dataclass(frozen=True, slots=True)
class PassOf:
    """A plan as the one of some pass."""

    epoch: int
    plan: Plan

    @property
    def digest(self) -> str:
        return self.plan.digest

    @property
    def planner(self) -> str:
        return self.plan.planner

    def __len__(self) -> int:
        return len(self.plan)

    def row(self, ordinal: int) -> int:
        return self.plan.row(ordinal)

    def predicted_tokens(self, ordinal: int) -> int:
        return self.plan.predicted_tokens(ordinal)


class _Known:
    """What a replica's shell holds."""

    __slots__ = ("alive", "generation", "name", "requests", "stale", "version")

    def __init__(self, number: int) -> None:
        # Padded, so that the policy's order by name is the order by number.
        self.name = f"rollout-{number:05d}"
        self.generation = 0
        self.alive = True
        self.version = 0
        self.requests: dict[str, Request] = {}
        self.stale = True
        """Its free places have changed since it asked."""

    @property
    def instance(self) -> str:
        return f"{self.name}-{self.generation}"


class PolicyDispatcher:
    """See the module. `policy` may be looked at."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.policy = Policy(fleet.job.rules, incarnation=1)
        self._known: list[_Known] = []
        self._by_name: dict[str, int] = {}
        self._lease_of: dict[str, tuple[int, r.Leased]] = {}
        self._reports: dict[int, list[SampleReport]] = {}
        self._chain = ""
        self._num_entries = 0
        self._num_requests = 0
        self._passes = fleet.job.passes
        self._offsets = [0]
        self._commit(self.policy.register_trainer(0.0, 0, "", 0, 0))
        self._commit(self.policy.announce(r.Announced(0, 0, 0, "manifest-0", "weights-0"), None))
        self._settle(0.0)

    # -- what the fleet tells ------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        outcome = self.policy.outcome
        if outcome is not None and outcome.outcome is r.JobOutcome.FAILED:
            raise JobFailed(outcome.reason)
        return outcome is not None

    def joined(self, now: float, replica: int) -> None:
        if replica == len(self._known):
            self._known.append(_Known(replica))
            self._by_name[self._known[replica].name] = replica
        else:
            self._known[replica].generation += 1
        known = self._known[replica]
        known.alive = known.stale = True
        slots = self.fleet.job.max_concurrent
        self._commit(self.policy.register_replica(now, known.name, known.instance, slots))
        self.attested(now, replica, self.fleet.version)

    def failed(self, now: float, replica: int) -> None:
        known = self._known[replica]
        known.alive = False
        known.requests.clear()
        self._reports.pop(replica, None)
        self.policy.withdraw(known.name)

    def done(self, now: float, replica: int, request: Request) -> None:
        known = self._known[replica]
        lease_id = str(request.key)
        del known.requests[lease_id]
        known.stale = True
        _, lease = self._lease_of[lease_id]
        self._num_entries += 1
        report = SampleReport(
            lease_id=lease_id,
            ticket=lease.ticket,
            index=lease.index,
            attempt=lease.attempt,
            entry_id=f"{self._num_entries}-0",
            sha256=b"",
            num_bytes=_BYTES_PER_TOKEN * (request.prompt + request.length),
            oldest_version=lease.version,
            newest_version=max(lease.version, known.version),
            num_tokens=request.length,
            reward=float(lease.index % 2),
            finished=True,
        )
        self._reports.setdefault(replica, []).append(report)

    def attested(self, now: float, replica: int, version: int) -> None:
        self._known[replica].version = version
        self._heartbeat(now, self._known[replica], replica)

    def announced(self, now: float, version: int) -> None:
        weights = r.Announced(version, version, 0, f"manifest-{version}", f"weights-{version}")
        self._commit(self.policy.announce(weights, None))

    def timer(self, now: float) -> float | None:
        """Heartbeats of all, and time for the policy."""
        for number, known in enumerate(self._known):
            if known.alive:
                self._heartbeat(now, known, number)
        every = self.fleet.job.heartbeat_s or self.fleet.job.rules.lease_term_s / 3
        return now + every

    def next_step(self, now: float, step: int) -> Chosen | None:
        self._flush(now)
        answer = self.policy.next_step(step, self._chain, ())
        self._commit(answer.records)
        if answer.decision is not None:
            self._chain = answer.decision.chain
            self.fleet.recorder.queue(now, len(self.policy.state.ready))
            return [self._member(member) for member in answer.decision.tickets]
        if answer.outcome == "finished" and self.policy.outcome is None:
            # A job in epochs whose last step was not known to be the last: its checkpoint ends it.
            self._cover(now, step)
        return None

    def trained(self, now: float, step: int, *, covers: bool) -> None:
        self._commit(self.policy.trained(step, step + 1, self._chain, {}))
        if covers:
            self._cover(now, step + 1)
        self._settle(now)

    def dispatch(self, now: float) -> None:
        self._flush(now)
        if self.policy.outcome is not None:
            return
        for known in self._known:
            if known.stale and known.alive:
                self._ask(now, known)
        self._assign(now)
        while self.policy.needs_plan() is not None:
            # The assignment has used up what was planned.
            self._settle(now)
            self._assign(now)

    def _assign(self, now: float) -> None:
        assignment = self.policy.assign(now)
        self._commit(assignment.records)
        for name, grants in assignment.grants.items():
            number = self._by_name[name]
            known = self._known[number]
            for grant in grants:
                group = (grant.ticket, grant.version)
                ticket = self._place(grant.ticket)
                request = self.fleet.send(number, ticket, grant.index, grant.lease_id, group=group)
                known.requests[grant.lease_id] = request
            known.stale = True
            self._ask(now, known)

    # -- the shell -----------------------------------------------------------------------------------------------

    def _ask(self, now: float, known: _Known) -> None:
        known.stale = False
        free = self.fleet.job.max_concurrent - len(known.requests)
        if free > 0:
            self._num_requests += 1
            self.policy.ask(now, known.name, known.instance, free, str(self._num_requests))

    def _heartbeat(self, now: float, known: _Known, number: int) -> None:
        engine = self.fleet.replicas[number].engine
        engine.advance(now)
        held = {lease_id: engine.progress(request) for lease_id, request in known.requests.items()}
        answer = self.policy.heartbeat(now, known.name, known.instance, held, known.version, False)
        self._commit(answer.records)
        self.fleet.touch(number)

    def _flush(self, now: float) -> None:
        """Report what is complete, then let the policy do what is due."""
        for number, reports in self._reports.items():
            known = self._known[number]
            self._commit(self.policy.report(now, known.name, known.instance, reports).records)
        self._reports.clear()
        self._settle(now)

    def _settle(self, now: float) -> None:
        while True:
            while (epoch := self.policy.needs_plan()) is not None:
                self._commit(self.policy.add_plan(self._pass(epoch)))
            records = self.policy.tick(now)
            if not records:
                return
            self._commit(records)

    def _pass(self, epoch: int) -> PassOf:
        plan = self._passes[epoch % len(self._passes)]
        while len(self._offsets) <= epoch + 1:
            last = len(self._offsets) - 1
            self._offsets.append(self._offsets[-1] + len(self._passes[last % len(self._passes)]))
        return PassOf(epoch, plan)

    def _place(self, ticket: r.TicketId) -> int:
        """Dispatch-order index over all passes."""
        return self._offsets[ticket.epoch] + ticket.ordinal

    def _member(self, member: r.DecidedTicket) -> tuple[int, int]:
        return self._place(member.ticket), min(sample.oldest_version for sample in member.samples)

    def _cover(self, now: float, step: int) -> None:
        self._commit(self.policy.covered(r.Covered(step, step, 0, f"step-{step}")))
        self._settle(now)
        entries, _ = self.policy.releasable_entries()
        self.policy.entries_deleted(entries)

    def _commit(self, records: Sequence[r.Record]) -> None:
        for record in records:
            self.policy.apply(record)
            match record:
                case r.Leased():
                    self._lease_of[record.lease_id] = (self._by_name[record.replica], record)
                    self.fleet.recorder.num_leases += 1
                case r.Accepted():
                    del self._lease_of[record.lease_id]
                case r.Returned():
                    self._take_back(record)
                case r.Ended(end=r.TicketEnd.DROPPED):
                    self.fleet.recorder.num_dropped += len(record.tickets)
                case _:
                    pass

    def _take_back(self, record: r.Returned) -> None:
        number, _ = self._lease_of.pop(record.lease_id)
        request = self._known[number].requests.pop(record.lease_id, None)
        if request is not None:
            self.fleet.abort(number, request)
            self._known[number].stale = True
        if record.reason in (r.ReturnReason.REPLICA_LOST, r.ReturnReason.EXPIRED):
            self.fleet.recorder.num_returned += 1
