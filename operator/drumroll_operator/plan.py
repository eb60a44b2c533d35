"""The operator's decisions: what was observed of one job -> the status to write, then what to do. Pure.

Level-triggered: nothing is remembered here but what the status says. What must not be done twice (a charge, the end,
a new trainer set) is in the status before anything is done; all else may be done again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from drumroll.api.status import RLJobStatus
from drumroll_operator import wanted as specs
from drumroll_operator.actions import Action, Apply, CreatePod, Plan, Record, SetLive
from drumroll_operator.budget import Budgets
from drumroll_operator.census import Census
from drumroll_operator.children import child_actions
from drumroll_operator.conditions import find
from drumroll_operator.endings import (
    Deadline,
    Ending,
    deadlines,
    latched,
    scheduler_word,
    spent_budget,
    user_error,
)
from drumroll_operator.events import action_events, change_events
from drumroll_operator.moments import seconds
from drumroll_operator.observed import Observed, Refusal
from drumroll_operator.parts import Scene
from drumroll_operator.reasons import INVALID_SPEC
from drumroll_operator.replacing import finishing
from drumroll_operator.retry import Tried, due
from drumroll_operator.rollup import Tries, resumed_at
from drumroll_operator.scaling import Rollouts, judge_rollouts, rollout_actions
from drumroll_operator.singles import Single, judge_single, single_actions
from drumroll_operator.status import Decided, Mode, next_status, refused_status, settled_status
from drumroll_operator.stopping import clean_up_actions, force_actions, suspend_actions
from drumroll_operator.timings import Timings
from drumroll_operator.trainers import TrainerSet, bound, judge_set, set_actions
from drumroll_operator.verdicts import Cause
from drumroll_operator.wanted import Wanted
from drumroll_operator.writing import write_at

_TIMINGS = Timings()


def plan(observed: Observed, timings: Timings = _TIMINGS) -> Plan:
    """What to do about one job now. The same observation always gives the same plan."""
    job = observed.job
    if job.deleting:
        return Plan()
    census = Census.of(job, observed.pods)
    wanted = specs.wanted(job.spec) if job.spec is not None else None
    if latched(job.status):
        return _settle(observed, census, wanted or Wanted(), timings)
    refusal = observed.refusal
    if wanted is None:
        refusal = refusal or Refusal(INVALID_SPEC, "the spec does not parse")
        return _close(observed, refused_status(observed, refusal), [], [], timings)
    scene = _scene(observed, census, wanted, timings)
    if refusal is not None and not wanted.suspend:
        return _refuse(scene, refusal)
    return _look_after(scene)


def _scene(observed: Observed, census: Census, wanted: Wanted, timings: Timings) -> Scene:
    status, progress = observed.job.status, observed.progress
    trainer = status.trainer
    trainers = judge_set(
        census,
        number=trainer.set_number if trainer is not None else 0,
        standing=trainer.replicas if trainer is not None else 0,
        wanted=wanted,
        progress=progress,
        timings=timings,
    )
    return Scene(observed, census, wanted, trainers, timings)


def _refuse(scene: Scene, refusal: Refusal) -> Plan:
    """Nothing is made or replaced, but the job may end: by its scheduler's word or by a deadline.

    Progress is not followed meanwhile, so that it cannot stall.
    """
    observed = scene.observed
    running = _deadlines(observed, replace(scene.wanted, stall_s=None))
    ending = scheduler_word(scene.census, observed.progress) or _missed(running, observed.now)
    if ending is not None:
        return _end(scene, Budgets.of(observed.job.status), ending)
    later = [deadline.at for deadline in running]
    return _close(observed, refused_status(observed, refusal), [], later, scene.timings)


# -- jobs that run ---------------------------------------------------------------------------------------------------


def _look_after(scene: Scene) -> Plan:
    observed, census, wanted, timings = scene.observed, scene.census, scene.wanted, scene.timings
    progress, trainers = observed.progress, scene.trainers
    budgets = Budgets.of(observed.job.status)
    word = scheduler_word(census, progress)
    if word is not None:
        return _end(scene, budgets, word)
    if wanted.suspend:
        return _suspend(scene, budgets)
    rollouts = judge_rollouts(census, wanted, progress, timings)
    singles = [judge_single(role, census, progress, timings) for role in ("store", "scheduler")]
    charges = [*trainers.charges, *rollouts.charges, *(charge for single in singles for charge in single.charges)]
    charges = [charge for charge in charges if charge.verdict.cause is not Cause.USER]
    budgets = budgets.charge(charges, {pod.uid for pod in census.own}, wanted, observed.now)
    running = _deadlines(observed, wanted)
    ending = user_error(census, progress) or spent_budget(budgets, wanted) or _missed(running, observed.now)
    if ending is not None:
        return _end(scene, budgets, ending)
    return _run(scene, budgets, rollouts, singles, [deadline.at for deadline in running])


def _deadlines(observed: Observed, wanted: Wanted) -> list[Deadline]:
    """Those that run; a job that just goes on has none before the status says since when."""
    status = observed.job.status
    suspended = find(status.conditions, "Suspended")
    if suspended is not None and suspended.status != "False":
        return []
    return deadlines(status, created=observed.job.created, resumed=resumed_at(status.conditions), wanted=wanted)


def _missed(running: Iterable[Deadline], now: float) -> Ending | None:
    return next((deadline.ending for deadline in running if deadline.at <= now), None)


def _run(scene: Scene, budgets: Budgets, rollouts: Rollouts, singles: Sequence[Single], later: list[float]) -> Plan:
    observed, census, timings = scene.observed, scene.census, scene.timings
    pods, times = _pod_actions(scene, budgets, rollouts, singles)
    creates = [action for action in pods if isinstance(action, CreatePod)]
    others = [action for action in pods if not isinstance(action, CreatePod)]
    children, child_times = child_actions(observed, census, creates=bool(creates), timings=timings)
    tried = due([*others, *children, *creates, *_live_values(scene)], observed, timings)
    decided = Decided(Mode.RUN, budgets, tries=_tries(tried))
    why = scene.trainers.why
    later = [*later, *times, *child_times, *tried.later, *scene.trainers.waits, *_look_again(scene)]
    return _close(observed, next_status(scene, decided), list(tried.now), later, timings, census=census, why=why)


def _tries(tried: Tried) -> Tries:
    return Tries(tried.failures, pending=any(isinstance(action, Apply | CreatePod) for action in tried.now))


def _pod_actions(
    scene: Scene, budgets: Budgets, rollouts: Rollouts, singles: Sequence[Single]
) -> tuple[list[Action], list[float]]:
    """In the order of importance: store, scheduler, trainers, replicas."""
    observed, census, wanted, timings = scene.observed, scene.census, scene.wanted, scene.timings
    now = observed.now
    actions, later = force_actions(observed, census, timings)
    for single in singles:
        if single.role == "scheduler" or wanted.store:
            more, times = single_actions(single, census, budgets, wanted=wanted, now=now, timings=timings)
            actions, later = actions + more, later + times
    over = finishing(observed.progress)
    more, times = set_actions(census, scene.trainers, budgets, wanted=wanted, now=now, timings=timings)
    actions += [action for action in more if not (over and isinstance(action, CreatePod))]
    may_create = not over and bound(census, scene.trainers, wanted)
    replicas, replica_times = rollout_actions(
        census, rollouts, budgets, may_create=may_create, wanted=wanted, now=now, timings=timings
    )
    return actions + replicas, [*later, *times, *replica_times]


def _live_values(scene: Scene) -> list[Action]:
    """What the scheduler must be told; asked of one that answers."""
    observed, progress = scene.observed, scene.observed.progress
    scheduler = scene.census.single("scheduler")
    if progress is None or finishing(progress) or scheduler is None or not (scheduler.live and scheduler.ready):
        return []
    known = {**progress.live, "steps": progress.steps_total, **observed.live_set}
    return [SetLive(name, value) for name, value in scene.wanted.live.items() if known.get(name) != value]


def _look_again(scene: Scene) -> list[float]:
    """Times at which a condition changes by itself."""
    observed, timings = scene.observed, scene.timings
    status = observed.job.status
    times = []
    if status.phase == "Running" and status.last_progress_time is not None:
        times.append(seconds(status.last_progress_time) + timings.progressing_s)
    if status.phase == "Suspended":
        times.append(observed.now + 1.0)
    if observed.unanswered_since is not None:
        times.append(observed.unanswered_since + timings.unanswered_s)
    for pod in scene.census.own:
        if pod.live and pod.node and pod.waiting:
            times.append((pod.bound_at or pod.created) + timings.stuck_creating_s)
        if pod.delete_by is not None:
            times.append(pod.delete_by + timings.overdue_s)
    return [at for at in times if at > observed.now]


# -- jobs that stop --------------------------------------------------------------------------------------------------


def _suspend(scene: Scene, budgets: Budgets) -> Plan:
    forced, later = force_actions(scene.observed, scene.census, scene.timings)
    tried = due([*forced, *suspend_actions(scene.census)], scene.observed, scene.timings)
    status = next_status(scene, Decided(Mode.SUSPEND, budgets, tries=_tries(tried)))
    return _close(scene.observed, status, list(tried.now), [*later, *tried.later], scene.timings)


def _end(scene: Scene, budgets: Budgets, ending: Ending) -> Plan:
    """Latch the end; what runs goes at once, or ends by itself where the job is complete."""
    status = next_status(scene, Decided(Mode.END, budgets, ending))
    actions, later = _clean_up(scene, complete=ending.complete, end=float(int(scene.observed.now)))
    tried = due(actions, scene.observed, scene.timings)
    return _close(scene.observed, status, list(tried.now), [*later, *tried.later], scene.timings)


def _clean_up(scene: Scene, *, complete: bool, end: float) -> tuple[list[Action], list[float]]:
    keep = scene.wanted.on_success if complete else scene.wanted.on_failure
    leave_s = scene.timings.leave_s if complete else 0.0
    return clean_up_actions(scene.observed, scene.census, end=end, keep=keep, leave_s=leave_s)


def _settle(observed: Observed, census: Census, wanted: Wanted, timings: Timings) -> Plan:
    """A job that has ended: nothing is ever made for it again."""
    status = observed.job.status
    trainer = status.trainer
    trainers = TrainerSet(trainer.set_number if trainer is not None else 0, 0, broken=False, done=True)
    scene = Scene(observed, census, wanted, trainers, timings)
    end = seconds(status.end_time) if status.end_time is not None else observed.now
    actions, later = _clean_up(scene, complete=status.phase == "Complete", end=end)
    forced, times = force_actions(observed, census, timings)
    tried = due([*forced, *actions], observed, timings)
    return _close(observed, settled_status(scene), list(tried.now), [*later, *times, *tried.later], timings)


# -- the plan itself -------------------------------------------------------------------------------------------------


def _close(
    observed: Observed,
    status: RLJobStatus,
    actions: list[Action],
    later: Iterable[float],
    timings: Timings,
    *,
    census: Census | None = None,
    why: str = "",
) -> Plan:
    """Decide whether the status is written now, add the Events, and reckon when to look again."""
    old, now = observed.job.status, observed.now
    times = list(later)
    # A new operator first learns how the job stands before it tells of progress.
    written = observed.since if observed.status_written is None else observed.status_written
    at = write_at(old, status, now=now, written=written, every_s=timings.progress_write_s)
    if at is not None and at > now:
        times.append(at)
    write = at is not None and at <= now
    events: list[Record] = change_events(old, status, why_new_set=why) if write else []
    if census is not None:
        events += action_events(actions, census, now, timings)
    requeue = max(0.0, min(times) - now) if times else None
    return Plan((*events, *actions), status if write else None, requeue)
