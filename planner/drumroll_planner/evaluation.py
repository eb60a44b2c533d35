"""Evaluation rounds: the newest weights answer the held-out prompts, once every so many steps.

    a version is due -> its round begins (pinned) -> samples are leased, for exactly that version -> the round ends
    (journaled, unpinned)

This stands beside the policy, looks at its state and changes nothing in it: evaluation leases count for no lag rule,
and nothing of a round is durable but its end. After a restart a round begins again, with the newest version. A round
ends when each sample was answered or has failed, when the next one is due, when no replica can have its version any
more, or at its time limit.

A trainer may be faster than replicas look for weights, so that a round's version would pass them by. While samples
wait for a lease, half of the replicas are therefore told of that version as if it were the newest.
"""

from collections.abc import Iterable, Mapping, Sequence

from drumroll_planner import records as r
from drumroll_planner.answers import HandedBack, LeaseGrant, SampleReport, Verdict
from drumroll_planner.evaluation_round import NOT_CURRENT, EvalRules, Round
from drumroll_planner.state import State

__all__ = ["HOLDER", "NOTHING", "EvalRounds", "EvalRules", "is_evaluation"]

HOLDER = "evaluation"
"""Who pins the version of a round."""
NOTHING = EvalRules(num_prompts=0, samples_per_prompt=1, every_steps=1, max_attempts=1, lease_term_s=1.0)
"""For a job without held-out prompts."""
_PREFIX = "eval-"


def is_evaluation(lease_id: str) -> bool:
    """Whether a lease is an evaluation's, current or not."""
    return lease_id.startswith(_PREFIX)


class EvalRounds:
    """See the module. `now` is monotonic, `wall` Unix seconds."""

    def __init__(self, rules: EvalRules, *, incarnation: int = 0, last: r.Evaluated | None = None) -> None:
        """`last`: the newest journaled end of a round."""
        self.rules = rules
        self.round: Round | None = None
        """The round that runs; to look at."""
        self._incarnation = incarnation
        self._num_leases = 0
        self._reached = None if last is None else last.step
        """Step of the newest round."""
        self._lineage = 0 if last is None else last.lineage
        self._end_by: float | None = None
        self._entries: dict[str, None] = {}

    # -- rounds ----------------------------------------------------------------------------------------------------

    def tick(self, now: float, *, wall: float, state: State) -> tuple[r.Record, ...]:
        """End and begin rounds, take back what is overdue or lost; the facts of it. Call often."""
        records: list[r.Record] = []
        self._follow_rewinds(state)
        if self.round is not None:
            self.round.take_back_lost(now, state.replicas)
            why = self._end_of(self.round, now, state)
            if why is not None:
                records += self._close(self.round, why)
        if self.round is None and (weights := self._due(state)) is not None:
            self.round = Round(self.rules, weights, now=now, wall=wall)
            self._reached = weights.step
        return (*records, *self._pins(state))

    def stop(self, state: State) -> tuple[r.Record, ...]:
        """The job ends, and so does the round."""
        records = [] if self.round is None else self._close(self.round, "the job has ended")
        return (*records, *self._pins(state))

    def end_waits(self, now: float, state: State) -> bool:
        """Whether the end of a job whose steps are all done has to wait for the last version's evaluation."""
        if not self.rules.num_prompts:
            return False
        if self._end_by is None:
            self._end_by = now + self.rules.end_limit_s
        newest = state.newest_version
        announced = newest is not None and state.announced[newest].step >= state.num_decided
        unfinished = self.round is not None or self._due(state) is not None or not announced
        return unfinished and now < self._end_by

    def _due(self, state: State) -> r.Announced | None:
        """The newest version where it is to be evaluated: the first, the last, or past the next multiple of steps."""
        version = state.newest_version
        if version is None or not self.rules.num_prompts or state.outcome is not None:
            return None
        weights = state.announced[version]
        if self._reached is None or self._passes_multiple(weights):
            return weights
        last = state.no_more_steps and weights.step >= state.num_decided
        return weights if last and weights.step > self._reached else None

    def _passes_multiple(self, weights: r.Announced) -> bool:
        every = self.rules.every_steps
        return self._reached is not None and weights.step // every > self._reached // every

    def _follow_rewinds(self, state: State) -> None:
        if self._lineage != state.lineage:
            self._lineage = state.lineage
            self._reached = None if self._reached is None else min(self._reached, state.base_step)

    def _end_of(self, current: Round, now: float, state: State) -> str | None:
        """Why the round ends now: "" when all its samples have their ends; None while it goes on."""
        replicas = state.replicas.values()
        newest = state.newest_version
        if current.done:
            return ""
        if state.is_abandoned(current.version):
            return "the job was rewound"
        if newest is not None and self._passes_multiple(state.announced[newest]):
            # The last version of the job is no such reason: it has time after this round.
            return "the next version to evaluate is here"
        if now >= current.ends_at:
            return f"it took longer than {self.rules.round_limit_s:g} s"
        if replicas and not current.leases and not any(current.may_serve(replica) for replica in replicas):
            return "no replica can have its weights any more"
        return None

    def _close(self, current: Round, why: str) -> list[r.Record]:
        self.round = None
        result = current.result(complete=not why)
        if not why:
            return [result]
        ended = f"{result.num_samples + result.num_failed} of {self.rules.num_samples} samples"
        message = f"the evaluation of version {current.version} ended after {ended}: {why}"
        return [result, r.Noted("EvaluationIncomplete", message)]

    def _pins(self, state: State) -> list[r.Record]:
        wanted = set() if self.round is None else {self.round.version}
        held = {version for holder, version in state.pins if holder == HOLDER}
        return [
            *(r.Unpinned(HOLDER, version) for version in sorted(held - wanted)),
            *(r.Pinned(HOLDER, version) for version in sorted(wanted - held)),
        ]

    # -- replicas --------------------------------------------------------------------------------------------------

    def weights_for(self, name: str, state: State) -> r.Announced | None:
        """What a replica is to be told of instead of the newest version, or None."""
        current, replica = self.round, state.replicas.get(name)
        if current is None or not current.waiting or replica is None or not current.may_serve(replica):
            return None
        serving = sorted(state.replicas)[: (len(state.replicas) + 1) // 2]
        return current.weights if name in serving else None

    def grant(self, now: float, name: str, free_slots: int, request_id: str, *, state: State) -> tuple[LeaseGrant, ...]:
        """Leases for a waiting replica: half of its slots at most, as long as it may be given training samples."""
        current, replica = self.round, state.replicas.get(name)
        if current is None or not current.waiting or replica is None or state.outcome is not None:
            return ()
        if replica.version != current.version or not current.may_serve(replica):
            return ()
        idle = state.no_more_steps or current.version < state.window.floor
        share = replica.slots if idle else max(1, replica.slots // 2)
        held = len(current.held_by(name, replica.instance))
        number = max(0, min(free_slots, share - held, len(current.waiting)))
        return tuple(
            current.lease(now, replica, lease_id=self._lease_id(), request_id=request_id) for _ in range(number)
        )

    def _lease_id(self) -> str:
        self._num_leases += 1
        return f"{_PREFIX}{self._incarnation}-{self._num_leases}"

    def granted(self, request_id: str) -> tuple[LeaseGrant, ...]:
        """Live leases that a call with this request id got."""
        leases = () if self.round is None else self.round.leases.values()
        return tuple(lease.grant for lease in leases if lease.request_id == request_id)

    def heartbeat(
        self, now: float, replica: str, instance: str, held: Mapping[str, int]
    ) -> tuple[tuple[LeaseGrant, ...], tuple[str, ...]]:
        """(leases that the replica lacks, lease ids that it is to stop); `held`: evaluation lease to tokens done."""
        return ((), tuple(held)) if self.round is None else self.round.heard(now, replica, instance, held)

    def report(self, replica: str, instance: str, samples: Sequence[SampleReport]) -> tuple[Verdict, ...]:
        """Accept answers under their current leases; a repeated accepted report is accepted again."""
        current = self.round
        if current is None:
            return tuple(Verdict(sample.lease_id, False, NOT_CURRENT) for sample in samples)
        verdicts = tuple(current.judge(replica, instance, sample) for sample in samples)
        accepted = (sample for sample, verdict in zip(samples, verdicts, strict=True) if verdict.accepted)
        self._entries.update((sample.entry_id, None) for sample in accepted)
        return verdicts

    def hand_back(self, replica: str, instance: str, samples: Sequence[HandedBack]) -> tuple[Verdict, ...]:
        """Take leases back; partial answers are not kept."""
        current = self.round
        if current is None:
            return tuple(Verdict(sample.lease_id, False, NOT_CURRENT) for sample in samples)
        return tuple(current.take_back(replica, instance, sample) for sample in samples)

    # -- views -----------------------------------------------------------------------------------------------------

    def releasable_entries(self, state: State) -> tuple[str, ...]:
        """Stream entries of accepted answers: their figures are taken, nobody reads them."""
        return tuple(entry_id for entry_id in self._entries if entry_id not in state.entries.needed)

    def entries_deleted(self, entry_ids: Iterable[str]) -> None:
        """The entries are gone."""
        for entry_id in entry_ids:
            self._entries.pop(entry_id, None)

    def gauges(self) -> dict[str, float]:
        """How far the running round is; nothing where nothing is evaluated."""
        if not self.rules.num_prompts:
            return {}
        return {
            "eval_samples_waiting": 0.0 if self.round is None else float(len(self.round.waiting)),
            "eval_leases_live": 0.0 if self.round is None else float(len(self.round.leases)),
        }
