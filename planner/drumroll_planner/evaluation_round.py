"""One version's evaluation: its samples, their leases and answers.

    waiting -> leased -> answered
       ^         |
       +---------+--> failed (after max_attempts charged returns)

A sample has one live lease at most, and one end at most. Leases are renewed by their own progress, as training leases
are. Nothing is kept of a partial answer: such a sample is leased again from its beginning.
"""

import statistics
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from drumroll_planner import records as r
from drumroll_planner.answers import HandedBack, LeaseGrant, SampleReport, Verdict
from drumroll_planner.tickets import Replica

_CHARGED = frozenset({r.ReturnReason.BAD_SAMPLE, r.ReturnReason.REWARD_ERROR, r.ReturnReason.ENGINE_ERROR})
NOT_CURRENT = "the lease is not current"


@dataclass(frozen=True, slots=True)
class EvalRules:
    """What is evaluated, and how often."""

    num_prompts: int
    """0: nothing is evaluated."""
    samples_per_prompt: int
    every_steps: int
    max_attempts: int
    lease_term_s: float
    round_limit_s: float = 3600.0
    """Longest round; a replica keeps its version no longer than that."""
    end_limit_s: float = 600.0
    """Longest time that the job's end waits for the last round."""

    @property
    def num_samples(self) -> int:
        """Samples of a round."""
        return self.num_prompts * self.samples_per_prompt


@dataclass(slots=True)
class EvalLease:
    """A live lease of one sample."""

    grant: LeaseGrant
    replica: str
    instance: str
    request_id: str
    deadline: float
    tokens_done: int | None = None
    """None until the replica has said that it holds the lease."""


class Round:
    """See the module. To look at from outside; only `EvalRounds` changes it."""

    def __init__(self, rules: EvalRules, weights: r.Announced, *, now: float, wall: float) -> None:
        """`now`: monotonic seconds, `wall`: Unix seconds."""
        self.weights = weights
        self.ends_at = now + rules.round_limit_s
        self.waiting = deque((row, i) for row in range(rules.num_prompts) for i in range(rules.samples_per_prompt))
        """Samples (row, index) that have neither lease nor end; those that came back first."""
        self.leases: dict[str, EvalLease] = {}
        self.accepted: dict[str, str] = {}
        """Lease id to entry id of each answer."""
        self.num_failed = 0
        self._rules = rules
        self._held_until = wall + rules.round_limit_s
        self._attempts: Counter[tuple[int, int]] = Counter()
        self._rewards: list[float] = []
        self._lengths: list[int] = []
        self._barred: set[tuple[str, str]] = set()
        """Instances that could not begin a sample: they go to other weights, or lack the prompts."""

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def done(self) -> bool:
        """Every sample has its end."""
        return not self.waiting and not self.leases

    def may_serve(self, replica: Replica) -> bool:
        """Whether the replica has the version, or can still come to it."""
        older = replica.version is None or replica.version <= self.version
        return older and (replica.name, replica.instance) not in self._barred

    def result(self, *, complete: bool) -> r.Evaluated:
        """The figures of all answers so far."""
        rewards, weights = self._rewards, self.weights
        return r.Evaluated(
            step=weights.step,
            version=weights.version,
            lineage=weights.lineage,
            num_samples=len(rewards),
            num_failed=self.num_failed,
            reward_mean=statistics.fmean(rewards) if rewards else 0.0,
            reward_std=statistics.pstdev(rewards) if rewards else 0.0,
            response_length_mean=statistics.fmean(self._lengths) if rewards else 0.0,
            complete=complete,
        )

    # -- leases ----------------------------------------------------------------------------------------------------

    def lease(self, now: float, replica: Replica, *, lease_id: str, request_id: str) -> LeaseGrant:
        """Lease the next waiting sample."""
        row, index = self.waiting.popleft()
        grant = LeaseGrant(
            lease_id=lease_id,
            kind=r.LeaseKind.EVAL,
            ticket=r.TicketId(self.version, row),
            row=row,
            index=index,
            attempt=self._attempts[row, index],
            version=self.version,
            partial=None,
            predicted_tokens=0,
            held_until=self._held_until,
        )
        deadline = now + self._rules.lease_term_s
        self.leases[lease_id] = EvalLease(grant, replica.name, replica.instance, request_id, deadline)
        return grant

    def held_by(self, replica: str, instance: str) -> dict[str, EvalLease]:
        """Live leases of one instance."""
        return {
            lease_id: lease
            for lease_id, lease in self.leases.items()
            if (lease.replica, lease.instance) == (replica, instance)
        }

    def take_back_lost(self, now: float, replicas: Mapping[str, Replica]) -> None:
        """Leases that are overdue, or whose replica is gone or has gone to other weights."""
        for lease in list(self.leases.values()):
            replica = replicas.get(lease.replica)
            if replica is None or replica.instance != lease.instance:
                self._give_back(lease, charged=bool(lease.tokens_done))
            elif now >= lease.deadline:
                # An attempt is charged only once work was acknowledged.
                self._give_back(lease, charged=lease.tokens_done is not None)
            elif replica.version != self.version:
                self._give_back(lease, charged=False)

    def _give_back(self, lease: EvalLease, *, charged: bool) -> None:
        """The sample waits again, at the head; or it has failed."""
        del self.leases[lease.grant.lease_id]
        sample = (lease.grant.row, lease.grant.index)
        self._attempts[sample] += charged
        if self._attempts[sample] >= self._rules.max_attempts:
            self.num_failed += 1
        else:
            self.waiting.appendleft(sample)

    # -- what replicas say -----------------------------------------------------------------------------------------

    def heard(
        self, now: float, replica: str, instance: str, held: Mapping[str, int]
    ) -> tuple[tuple[LeaseGrant, ...], tuple[str, ...]]:
        """(leases that the replica lacks, lease ids that it is to stop); `held`: lease id to tokens done."""
        live = self.held_by(replica, instance)
        for lease_id, tokens in held.items():
            lease = live.get(lease_id)
            if lease is None:
                continue
            if tokens > (lease.tokens_done or 0):
                lease.deadline = now + self._rules.lease_term_s
            lease.tokens_done = max(tokens, lease.tokens_done or 0)
        missing = tuple(lease.grant for lease_id, lease in live.items() if lease_id not in held)
        return missing, tuple(lease_id for lease_id in held if lease_id not in live)

    def judge(self, replica: str, instance: str, sample: SampleReport) -> Verdict:
        """Accept an answer under its current lease; a repeated accepted report is accepted again."""
        lease = self.held_by(replica, instance).get(sample.lease_id)
        if lease is None:
            known = self.accepted.get(sample.lease_id) == sample.entry_id
            return Verdict(sample.lease_id, known, "" if known else NOT_CURRENT)
        grant = lease.grant
        if (grant.ticket, grant.index, grant.attempt) != (sample.ticket, sample.index, sample.attempt):
            return Verdict(sample.lease_id, False, "the lease is for another sample")
        if not sample.oldest_version == sample.newest_version == self.version:
            self._give_back(lease, charged=True)
            trouble = f"tokens of versions {sample.oldest_version} to {sample.newest_version}, not {self.version} alone"
            return Verdict(sample.lease_id, False, trouble)
        del self.leases[sample.lease_id]
        self.accepted[sample.lease_id] = sample.entry_id
        self._rewards.append(sample.reward)
        self._lengths.append(sample.num_tokens)
        return Verdict(sample.lease_id, True, "")

    def take_back(self, replica: str, instance: str, sample: HandedBack) -> Verdict:
        """A lease that is handed back."""
        lease = self.held_by(replica, instance).get(sample.lease_id)
        if lease is None:
            return Verdict(sample.lease_id, False, NOT_CURRENT)
        if sample.reason is r.ReturnReason.UNSTARTED:
            # Leased again to this one it would come back at once, again and again.
            self._barred.add((replica, instance))
        self._give_back(lease, charged=sample.reason in _CHARGED)
        return Verdict(sample.lease_id, True, "")
