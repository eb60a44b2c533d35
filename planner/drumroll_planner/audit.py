"""The audit: proves of a whole journal that every ticket and every token came to its right end. Pure.

It keeps books of its own and shares no code with the policy but the records and the chain digest, so that a
mistake there cannot hide here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drumroll_planner import records as r
from drumroll_planner.audit_books import Books, Sample
from drumroll_planner.chain import chain_digest
from drumroll_planner.rules import Rules


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What the newest checkpoint says of itself."""

    step: int
    version: int
    lineage: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """`ok`: the job is complete and nothing was found."""

    outcome: str
    """complete | failed | unfinished"""
    findings: tuple[str, ...]
    counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        return self.outcome == "complete" and not self.findings

    def summary(self) -> str:
        """One line for people."""
        ends = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        found = f"{len(self.findings)} findings" if self.findings else "nothing found"
        return f"job {self.outcome}: {found}; {ends}"


def audit(
    records: Iterable[r.Record],
    *,
    rules: Rules,
    checkpoint: CheckpointFacts | None,
    earlier_rules: Mapping[str, Rules] | None = None,
) -> AuditReport:
    """Check all records of a job, in order, over all incarnations.

    Args:
        rules: the job's rules.
        checkpoint: facts of the newest checkpoint; None where there is none.
        earlier_rules: rules of earlier revisions by `rules_digest`, where a job was resumed under changed ones.
    """
    auditor = _Auditor(rules, earlier_rules or {})
    for record in records:
        auditor.read(record)
    auditor.close(checkpoint)
    return AuditReport(auditor.outcome, tuple(auditor.findings), auditor.counts())


class _Auditor:
    """Reads records one by one; see `audit`."""

    def __init__(self, rules: Rules, earlier: Mapping[str, Rules]) -> None:
        self.findings: list[str] = []
        self.outcome = "unfinished"
        self._rules = rules
        self._last_rules = rules
        self._earlier = earlier
        self._books = Books()
        self._adopted: set[int] = set()
        self._readers: dict[type, Callable[[Any], None]] = {
            r.JobOpened: self._job_opened,
            r.PassPlanned: self._pass_planned,
            r.ReplicaJoined: self._replica_joined,
            r.ReplicaLeft: self._replica_left,
            r.Attested: self._attested,
            r.Admitted: self._admitted,
            r.Leased: self._leased,
            r.Returned: self._returned,
            r.Accepted: self._accepted,
            r.Discarded: self._discarded,
            r.Decided: self._decided,
            r.Announced: self._announced,
            r.Trained: self._trained,
            r.Covered: self._covered,
            r.Ended: self._ended,
            r.TrainerRegistered: self._trainer_registered,
            r.Rewound: self._rewound,
            r.JobEnded: self._job_ended,
            r.Noted: self._noted,
        }

    def read(self, record: r.Record) -> None:
        if self.outcome != "unfinished":
            late = isinstance(record, r.Admitted | r.Leased | r.Accepted | r.Decided | r.Ended | r.Covered | r.Rewound)
            self._expect(not late, f"{record} comes after the job's end")
        reader = self._readers.get(type(record))
        if reader is not None:
            reader(record)

    def _expect(self, holds: bool, finding: str) -> None:
        if not holds:
            self.findings.append(finding)

    # -- the job ---------------------------------------------------------------------------------------------------

    def _job_opened(self, record: r.JobOpened) -> None:
        digest = self._books.rules_digest
        self._rules = self._earlier.get(record.rules_digest, self._last_rules)
        if digest is not None and digest != record.rules_digest:
            self._books.forget_undecided(record.num_prompts)
        self._books.rules_digest = record.rules_digest

    def _pass_planned(self, record: r.PassPlanned) -> None:
        self._expect(record.epoch not in self._books.passes, f"epoch {record.epoch} is planned twice")
        self._books.passes[record.epoch] = record.num_tickets

    def _job_ended(self, record: r.JobEnded) -> None:
        self.outcome = record.outcome.value

    def _noted(self, record: r.Noted) -> None:
        if record.reason == "DecisionAdopted":
            self._adopted.add(int(record.message))

    # -- replicas --------------------------------------------------------------------------------------------------

    def _replica_joined(self, record: r.ReplicaJoined) -> None:
        self._books.replicas[record.replica] = (record.instance, None)

    def _replica_left(self, record: r.ReplicaLeft) -> None:
        self._books.replicas.pop(record.replica, None)
        for lease in self._books.leases.values():
            left = (lease.replica, lease.instance) == (record.replica, record.instance)
            self._expect(not left, f"replica {record.replica} left with live lease {lease.lease_id}")

    def _attested(self, record: r.Attested) -> None:
        announced = record.version in self._books.announced
        self._expect(announced, f"replica {record.replica} attested version {record.version}, never announced")
        self._books.replicas[record.replica] = (record.instance, record.version)

    # -- leases and samples ----------------------------------------------------------------------------------------

    def _admitted(self, record: r.Admitted) -> None:
        name = _name(record.ticket)
        planned = record.ticket.ordinal < self._books.passes.get(record.ticket.epoch, 0)
        self._expect(planned, f"{name} is admitted, but is in no planned pass")
        self._expect(record.ticket not in self._books.rows, f"{name} is admitted twice")
        self._books.rows[record.ticket] = record.row

    def _leased(self, record: r.Leased) -> None:
        books, name = self._books, f"{_name(record.ticket)} sample {record.index}"
        sample = books.sample(record.ticket, record.index)
        self._expect(record.ticket in books.rows, f"{name} is leased, but never admitted")
        self._expect(record.lease_id not in books.lease_ids, f"lease {record.lease_id} is given twice")
        self._expect(sample.lease is None, f"{name} is leased twice at a time ({record.lease_id})")
        self._expect(sample.accepted is None, f"{name} is leased though it has an accepted answer")
        self._expect(self._is_open(record.ticket), f"{name} is leased though its ticket is decided or ended")
        attested = books.replicas.get(record.replica) == (record.instance, record.version)
        self._expect(attested, f"{name} is leased at version {record.version}, not attested by {record.replica}")
        books.lease_ids.add(record.lease_id)
        books.leases[record.lease_id] = record
        sample.lease = record.lease_id

    def _returned(self, record: r.Returned) -> None:
        name = f"{_name(record.ticket)} sample {record.index}"
        lease = self._books.leases.get(record.lease_id)
        live = lease is not None and (lease.ticket, lease.index) == (record.ticket, record.index)
        self._expect(live, f"{name} came back under lease {record.lease_id}, which is not live")
        self._books.end_lease(record.lease_id)

    def _accepted(self, record: r.Accepted) -> None:
        name = f"{_name(record.ticket)} sample {record.index}"
        lease = self._books.leases.get(record.lease_id)
        of_lease = lease is not None and (lease.ticket, lease.index, lease.attempt) == (
            record.ticket,
            record.index,
            record.attempt,
        )
        self._expect(of_lease, f"{name} was accepted under lease {record.lease_id}, which is not its live lease")
        sample = self._books.sample(record.ticket, record.index)
        self._expect(sample.accepted is None, f"{name} was accepted twice")
        self._books.end_lease(record.lease_id)
        sample.accepted = record

    def _discarded(self, record: r.Discarded) -> None:
        if record.ticket not in self._books.step_of:
            self._books.sample(record.ticket, record.index).accepted = None

    def _is_open(self, ticket: r.TicketId) -> bool:
        return ticket not in self._books.ends and ticket not in self._books.step_of

    # -- steps -----------------------------------------------------------------------------------------------------

    def _decided(self, record: r.Decided) -> None:
        books, name = self._books, f"step {record.step} (version {record.version})"
        self._expect(record.step == len(books.decisions), f"{name} comes after step {len(books.decisions) - 1}")
        self._expect(record.lineage == books.lineage, f"{name} is of lineage {record.lineage}, not {books.lineage}")
        self._expect(record.version == books.next_version, f"{name} should train version {books.next_version}")
        previous = books.decisions[-1].chain if books.decisions else ""
        self._expect(chain_digest(previous, record) == record.chain, f"{name} has a wrong chain digest")
        floor = record.version - self._rules.max_policy_lag
        self._expect(record.mask_below >= floor, f"{name} masks only below {record.mask_below}, not below {floor}")
        for member in record.tickets:
            self._member(record, member, floor)
        books.decisions.append(record)
        books.next_version = record.version + 1
        self._adopted.discard(record.step)

    def _member(self, step: r.Decided, member: r.DecidedTicket, floor: int) -> None:
        books, name = self._books, f"{_name(member.ticket)} in step {step.step} (version {step.version})"
        self._expect(books.rows.get(member.ticket) == member.row, f"{name} was not admitted with row {member.row}")
        self._expect(self._is_open(member.ticket), f"{name} was decided or ended before")
        indexes = [sample.index for sample in member.samples]
        size = self._rules.group_size
        self._expect(indexes == list(range(size)), f"{name} has samples {indexes}, not {size} of them")
        for sample in member.samples:
            old = sample.oldest_version < floor and self._rules.lag_policy != "mask"
            self._expect(not old, f"{name} has tokens of version {sample.oldest_version}, below {floor}")
            self._decided_sample(name, books.sample(member.ticket, sample.index), sample, step.step in self._adopted)
        books.step_of[member.ticket] = step.step

    def _decided_sample(self, name: str, held: Sample, chosen: r.DecidedSample, adopted: bool) -> None:
        self._expect(held.lease is None, f"{name} sample {chosen.index} was still leased")
        if adopted:
            return
        accepted = held.accepted
        same = accepted is not None and chosen == r.DecidedSample(
            accepted.index,
            accepted.attempt,
            accepted.entry_id,
            accepted.sha256,
            accepted.oldest_version,
            accepted.num_tokens,
        )
        self._expect(same, f"{name} sample {chosen.index} (entry {chosen.entry_id}) is not what was accepted")

    def _trained(self, record: r.Trained) -> None:
        decision = self._books.decision(record.step)
        same = decision is not None and (decision.chain, decision.version + 1) == (record.chain, record.version)
        self._expect(same, f"step {record.step} made version {record.version}, which no decision led to")

    def _announced(self, record: r.Announced) -> None:
        newest = max(self._books.announced, default=-1)
        self._expect(record.version > newest, f"version {record.version} is announced after version {newest}")
        self._books.announced.add(record.version)

    def _covered(self, record: r.Covered) -> None:
        books = self._books
        expected = books.version_before(record.step)
        same = (record.version, record.lineage) == (expected, books.lineage)
        self._expect(same, f"the checkpoint before step {record.step} holds version {record.version}, not {expected}")
        self._expect(record.step > books.covered_step or not books.covered_step, f"step {record.step} covered again")
        books.covered = record

    def _ended(self, record: r.Ended) -> None:
        for member in record.tickets:
            name = f"{_name(member.ticket)} ({record.end})"
            self._expect(member.ticket in self._books.rows, f"{name} ended, but was never admitted")
            self._expect(member.ticket not in self._books.ends, f"{name} has a second end")
            step = self._books.step_of.get(member.ticket)
            if record.end is r.TicketEnd.COVERED:
                held = step is not None and step < self._books.covered_step
                self._expect(held, f"{name} ended, but no checkpoint holds its step")
            else:
                self._expect(step is None, f"{name} ended, but is in step {step}")
                self._expect(not self._books.has_lease(member.ticket), f"{name} ended with a live lease")
            self._books.ends[member.ticket] = record.end

    def _trainer_registered(self, record: r.TrainerRegistered) -> None:
        expected = self._books.trainer_epoch + 1
        self._expect(record.trainer_epoch == expected, f"trainer epoch {record.trainer_epoch} is not {expected}")
        self._books.trainer_epoch = record.trainer_epoch

    def _rewound(self, record: r.Rewound) -> None:
        books = self._books
        used = max([books.next_version, *books.announced])
        self._expect(record.version > used, f"the rewind to step {record.step} uses version {record.version} again")
        self._expect(record.lineage > books.lineage, f"the rewind to step {record.step} keeps the lineage")
        self._expect(record.step <= len(books.decisions), f"the rewind goes forward to step {record.step}")
        books.rewind(record)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self, checkpoint: CheckpointFacts | None) -> None:
        """What must hold once everything is read."""
        books = self._books
        if self.outcome != "complete":
            return
        for ticket in sorted(books.rows.keys() - books.ends.keys()):
            self.findings.append(f"{_name(ticket)} was admitted and has no end")
        steps = len(books.decisions)
        self._expect(books.covered_step == steps, f"{steps} steps are decided, {books.covered_step} covered")
        newest = books.covered
        if newest is not None and checkpoint != CheckpointFacts(newest.step, newest.version, newest.lineage):
            self.findings.append(f"the newest checkpoint is {checkpoint}, the journal's is {newest}")
        for decision in books.decisions:
            for member in decision.tickets:
                end = books.ends.get(member.ticket)
                covered = end is r.TicketEnd.COVERED
                self._expect(covered, f"{_name(member.ticket)} of step {decision.step} ended as {end}")

    def counts(self) -> dict[str, int]:
        ends = Counter(self._books.ends.values())
        decided = sum(len(decision.tickets) for decision in self._books.decisions)
        return {
            "admitted": len(self._books.rows),
            **{end.value: ends[end] for end in r.TicketEnd},
            "steps": len(self._books.decisions),
            "decided": decided,
        }


def _name(ticket: r.TicketId) -> str:
    return f"ticket ({ticket.epoch}, {ticket.ordinal})"
