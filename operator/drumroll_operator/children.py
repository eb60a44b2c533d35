"""Which of the job's other objects are written now: new and changed ones, those that pods wait for, old ones in
turn."""

from zlib import crc32

from drumroll_operator.actions import Action, Apply, DeleteChild
from drumroll_operator.census import Census
from drumroll_operator.observed import Applied, Child, Observed
from drumroll_operator.problems import problem
from drumroll_operator.reasons import CREATE_CONTAINER_CONFIG_ERROR, STUCK_CREATING
from drumroll_operator.timings import Timings

_WAITS_FOR_CHILDREN = (STUCK_CREATING, CREATE_CONTAINER_CONFIG_ERROR)


def child_actions(
    observed: Observed, census: Census, *, creates: bool, timings: Timings
) -> tuple[list[Action], list[float]]:
    """(actions, times when the others are due). `creates`: pods are about to be made, which need all children.

    A restarted operator knows nothing of what was applied. Where the job's pods stand, it takes its time, so that a
    thousand jobs are not written at once.
    """
    last = {(a.child.kind, a.child.name): a for a in observed.applied}
    problems = (problem(pod, observed.now, timings) for pod in census.own)
    stuck = any(found is not None and found.reason in _WAITS_FOR_CHILDREN for found in problems)
    stands = bool(census.own) and observed.job.status.config == observed.config and not creates
    actions: list[Action] = []
    later: list[float] = []
    for child in observed.children:
        at = _due_at(child, last, observed, stuck=stuck, stands=stands, timings=timings)
        if at <= observed.now:
            actions.append(Apply(child))
        else:
            later.append(at)
    return actions + _unwanted(observed, census), later


def _due_at(
    child: Child,
    last: dict[tuple[str, str], Applied],
    observed: Observed,
    *,
    stuck: bool,
    stands: bool,
    timings: Timings,
) -> float:
    known = last.get((child.kind, child.name))
    if known is not None and known.child == child:
        return known.at + (timings.apply_stuck_s if stuck else timings.apply_again_s)
    if known is not None or stuck or not stands:
        return observed.now
    share = crc32(observed.job.uid.encode()) / 2**32
    return observed.since + share * timings.apply_again_s


def _unwanted(observed: Observed, census: Census) -> list[Action]:
    """Old revisions that no pod mounts any more; nothing while the job cannot be rendered."""
    if not observed.children:
        return []
    kept = {(child.kind, child.name) for child in observed.children}
    mounted = {("ConfigMap", pod.config) for pod in census.own if not pod.ended}
    old = {(a.child.kind, a.child.name): a.child for a in observed.applied}
    return [DeleteChild(child) for key, child in sorted(old.items()) if key not in kept | mounted]
