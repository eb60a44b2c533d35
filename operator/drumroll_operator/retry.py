"""When a failed action may be tried again, and what waits with it.

Pods are created in the order of their importance. A refused create holds back those behind it: what a quota still gives
must not go to extra replicas while the trainer waits, and a refusal costs one request, not one for each pod.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumroll_operator.actions import Action, Apply, CreatePod
from drumroll_operator.observed import Applied, Failure, FailureKind, Observed
from drumroll_operator.timings import Timings

SLOW = (FailureKind.FORBIDDEN, FailureKind.DENIED, FailureKind.INVALID, FailureKind.NAMESPACE_TERMINATING)
"""Only people can help: tried again seldom from the start."""


def retry_at(failure: Failure, timings: Timings) -> float:
    """When the action may be tried again."""
    doubled = timings.retry_first_s * 2.0 ** min(max(failure.count - 1, 0), 30)
    least = timings.retry_most_s / 2 if failure.kind in SLOW else 0.0
    return failure.at + min(timings.retry_most_s, max(doubled, least))


@dataclass(frozen=True, slots=True)
class Tried:
    """What is left to do of a list of actions."""

    now: tuple[Action, ...]
    later: tuple[float, ...]
    """When those are due that must wait after a failure."""
    failures: tuple[Failure, ...]
    """Failures of wanted actions, waiting or about to be tried again, the most important first."""


def due(wanted: Sequence[Action], observed: Observed, timings: Timings) -> Tried:
    """Take out what must wait."""
    failures = {failure.key: failure for failure in observed.failures}
    now: list[Action] = []
    later: list[float] = []
    creates_wait = False
    for action in wanted:
        failure = failures.get(action.key)
        waits = failure is not None and observed.now < retry_at(failure, timings)
        if failure is not None and waits:
            later.append(retry_at(failure, timings))
        if isinstance(action, Apply) and waits:
            creates_wait = creates_wait or not _stands(action, observed.applied)
        if isinstance(action, CreatePod):
            waits = creates_wait = creates_wait or waits
        if not waits:
            now.append(action)
    return Tried(tuple(now), tuple(later), _of(wanted, failures.values()))


def _stands(action: Apply, applied: Iterable[Applied]) -> bool:
    return any(a.child == action.child for a in applied)


def _of(wanted: Iterable[Action], failures: Iterable[Failure]) -> tuple[Failure, ...]:
    by_key = {failure.key: failure for failure in failures}
    return tuple(by_key[action.key] for action in wanted if action.key in by_key)
