"""What the trainer does: ask for steps, commit, cover. Pure: facts and answers that follow from the state.

Both sides compare chain digests. A ledger that is behind adopts what the trainer trained; one that disagrees sends
the job back to the newest checkpoint under a new lineage.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from drumroll_planner import records as r
from drumroll_planner.answers import StepAnswer
from drumroll_planner.chain import chain_digest
from drumroll_planner.ends import ended_by
from drumroll_planner.lineage import can_rewind_to, rewind
from drumroll_planner.records import TicketId
from drumroll_planner.state import State
from drumroll_planner.steps import give_back


@dataclass(frozen=True, slots=True)
class TrainerStand:
    """What the trainer said of itself when it registered."""

    version: int
    lineage: int


def next_step(
    state: State, step: int, chain: str, known: Sequence[r.Decided], stand: TrainerStand | None
) -> StepAnswer:
    """Answer to the trainer that goes on with `step`; `stand`: None once it is known to be on this lineage."""
    if state.outcome is not None:
        failed = state.outcome.outcome is r.JobOutcome.FAILED
        return StepAnswer("failed" if failed else "finished", reason=state.outcome.reason)
    if stand is not None and stand.lineage > state.lineage:
        reason = f"the ledger lost the rewind to lineage {stand.lineage}"
        return _rewind(state, state.covered_step, reason, above=stand.version, lineage=stand.lineage)
    behind = stand is not None and stand.lineage < state.lineage
    pending = state.rewound is not None and (behind or state.rewound.version > max(state.announced, default=-1))
    if state.rewound is not None and pending and step >= state.covered_step:
        return StepAnswer("rewind", rewind=state.rewound, reason=state.rewound.reason)
    if step > state.num_decided:
        return _adopt(state, step, chain, known)
    if state.chain_before(step) != chain:
        return _disagree(state, step)
    if step < state.covered_step:
        return _behind_coverage(state, step)
    trained = _implied(state, step)
    if step < state.num_decided:
        return StepAnswer("decided", trained, decision=state.steps[step].decision)
    return StepAnswer("finished" if state.no_more_steps else "wait", trained)


def _implied(state: State, step: int) -> tuple[r.Record, ...]:
    """Who asks for a step has trained all before it: commits that a ledger lost."""
    missing = range(state.trained_through, step)
    return tuple(r.Trained(number, state.version_of(number) + 1, state.chains[number]) for number in missing)


def _rewind(state: State, step: int, reason: str, *, above: int = 0, lineage: int = 0) -> StepAnswer:
    records = rewind(state, step, reason, above=above, lineage=lineage)
    rewound = records[-1]
    return StepAnswer("rewind", records, rewind=rewound if isinstance(rewound, r.Rewound) else None, reason=reason)


def _disagree(state: State, step: int) -> StepAnswer:
    if step <= state.covered_step:
        reason = (
            f"the checkpoint before step {step} is of another history than the ledger, whose newest checkpoint is "
            f"before step {state.covered_step}"
        )
        return StepAnswer("failed", reason=reason)
    return _rewind(state, state.covered_step, f"trainer and ledger disagree on the steps before {step}")


def _behind_coverage(state: State, step: int) -> StepAnswer:
    """The newest checkpoint is gone or damaged: only a trainer that started so far back may turn the job back."""
    if step != state.trainer_step or not can_rewind_to(state, step):
        return StepAnswer("failed", reason=f"step {step} is covered by a checkpoint and its samples are deleted")
    return _rewind(state, step, f"the trainer started from a checkpoint before step {step}, behind the newest")


def _adopt(state: State, step: int, chain: str, known: Sequence[r.Decided]) -> StepAnswer:
    """The ledger lost its tail: take the trainer's decisions over where they continue the ledger's."""
    if not known:
        return StepAnswer("send_known")
    missing = sorted((decided for decided in known if decided.step >= state.num_decided), key=lambda d: d.step)
    if trouble := _adoption_trouble(state, step, chain, missing):
        newest = max(decided.version for decided in known) + 1
        lineage = max(decided.lineage for decided in known)
        return _rewind(state, state.covered_step, trouble, above=newest, lineage=lineage)
    records: list[r.Record] = []
    for decided in missing:
        for member in decided.tickets:
            ticket = state.tickets.get(member.ticket)
            records += [r.Admitted(member.ticket, member.row, 0)] if ticket is None else give_back(ticket, "adopted")
        records.append(r.Noted("DecisionAdopted", str(decided.step)))
        records.append(decided)
        records.append(r.Trained(decided.step, decided.version + 1, decided.chain))
    return StepAnswer("wait", tuple(records))


def _adoption_trouble(state: State, step: int, chain: str, missing: Sequence[r.Decided]) -> str:
    if [decided.step for decided in missing] != list(range(state.num_decided, step)):
        return f"the ledger ends at step {state.num_decided} and the trainer cannot show all steps before {step}"
    previous = state.chain_before(state.num_decided) or ""
    adopted: set[TicketId] = set()
    for decided in missing:
        expected = (state.version_of(decided.step), state.lineage, chain_digest(previous, decided))
        if (decided.version, decided.lineage, decided.chain) != expected:
            return f"the trainer's step {decided.step} does not continue the ledger's steps"
        for member in decided.tickets:
            undecided = member.ticket in state.tickets or not state.is_admitted(member.ticket)
            if not undecided or member.ticket in adopted:
                return f"the trainer's step {decided.step} holds ticket {tuple(member.ticket)}, which has ended"
            adopted.add(member.ticket)
        previous = decided.chain
    return "" if previous == chain else f"the trainer's chain before step {step} is not that of its decisions"


def trained(state: State, step: int, version: int, chain: str, stats: dict[str, float]) -> tuple[r.Record, ...]:
    """The fact that a step is trained; () for a replayed step, or one that is not of this lineage's chain."""
    fresh = state.outcome is None and state.num_trained <= step < state.num_decided
    if not fresh or state.chains.get(step) != chain or state.version_of(step) + 1 != version:
        return ()
    return (r.Trained(step, version, chain, stats),)


def covered(state: State, coverage: r.Covered) -> tuple[r.Record, ...]:
    """The coverage and the ends that it brings; () for one that is known, or not of this history.

    A coverage has no chain digest: that its steps are of this ledger's chain is known from their commits.
    """
    known = state.covered is not None and coverage.step <= state.covered.step
    of_lineage = coverage.lineage == state.lineage and coverage.version == state.version_of(coverage.step)
    if known or not of_lineage or coverage.step > state.num_trained or state.outcome is not None:
        return ()
    return (coverage, *ended_by(state, coverage))


def lost_samples(state: State, step: int, samples: Sequence[tuple[TicketId, int]]) -> tuple[r.Record, ...]:
    """Samples of a decided step are gone: back to the newest checkpoint. () for a step that is void or covered."""
    if not samples or step not in state.steps or step < state.covered_step or state.outcome is not None:
        return ()
    named = ", ".join(f"{tuple(ticket)}#{index}" for ticket, index in samples[:5])
    more = f" and {len(samples) - 5} more" if len(samples) > 5 else ""
    return rewind(state, state.covered_step, f"samples of step {step} are lost: {named}{more}")


def announce(state: State, weights: r.Announced, diverged: r.ReplayDiverged | None) -> tuple[r.Record, ...]:
    """A version for replicas; versions only grow, so a known or older one gives no record."""
    records: list[r.Record] = []
    newest = max(state.announced, default=-1)
    if weights.lineage == state.lineage and weights.version > newest:
        records.append(weights)
    if diverged is not None:
        records.append(diverged)
    return tuple(records)
