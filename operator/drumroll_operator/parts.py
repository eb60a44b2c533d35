"""The conditions of a job's parts: store, scheduler, trainer, replicas and their weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from drumroll.api.status import Condition
from drumroll_operator import reasons
from drumroll_operator.census import Census, replica_name
from drumroll_operator.conditions import Said, find, held
from drumroll_operator.labels import pod_name
from drumroll_operator.observed import Observed, PodView
from drumroll_operator.problems import Problem, problem
from drumroll_operator.replacing import Course, finishing, judge
from drumroll_operator.substrate import Role
from drumroll_operator.texts import names
from drumroll_operator.timings import Timings
from drumroll_operator.trainers import TrainerSet, bound
from drumroll_operator.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Scene:
    """What the conditions are made from."""

    observed: Observed
    census: Census
    wanted: Wanted
    trainers: TrainerSet
    timings: Timings

    @property
    def old(self) -> Sequence[Condition]:
        """Conditions as they are stored."""
        return self.observed.job.status.conditions

    def problem(self, pod: PodView) -> Problem | None:
        """What keeps a pod from being ready; None also for one that has ended as it should."""
        if pod.ended:
            course = judge(pod, self.observed.progress, self.timings).course
            if course is Course.LEAVE:
                return None
            if course is Course.WAIT:
                return Problem(reasons.FINISHING, f"{pod.name} says that it is done; waiting for the scheduler")
        return problem(pod, self.observed.now, self.timings)


def part_conditions(scene: Scene) -> list[Said]:
    """One for each part. Workers of a job that is over end by themselves, which is nothing to report."""
    said = [_stream(scene), _scheduler(scene), _trainer(scene), _rollout(scene), _weights(scene)]
    if finishing(scene.observed.progress):
        return [*said[:2], *(held(scene.old, one.type, one) for one in said[2:])]
    return said


def problems(scene: Scene, role: Role) -> list[Problem]:
    """Of the pods of a role that should be ready, the grave ones first."""
    found = [p for p in (scene.problem(pod) for pod in scene.census.of_role(role)) if p is not None]
    return sorted(found, key=lambda p: not p.grave)


def _single(scene: Scene, type_: str, role: Role) -> Said:
    name = pod_name(scene.census.job, role)
    if name in scene.census.foreign:
        return Said(type_, "False", reasons.NAME_TAKEN, taken(name))
    if scene.census.single(role) is None:
        return _absent(scene, type_, f"{name} does not exist")
    found = problems(scene, role)
    if found:
        return Said(type_, "False", found[0].reason, found[0].message)
    return Said(type_, "True", reasons.PODS_READY)


def _absent(scene: Scene, type_: str, message: str) -> Said:
    """A pod does not exist: it was there, if the part was ready before."""
    old = find(scene.old, type_)
    was_there = old is not None and (old.status == "True" or old.reason == reasons.POD_DELETED)
    return Said(type_, "False", reasons.POD_DELETED if was_there else reasons.NOT_CREATED, message)


def taken(name: str) -> str:
    """A sentence about a foreign pod."""
    return f"pod {name} belongs to an earlier job of this name or to someone else; waiting for it to go"


def _stream(scene: Scene) -> Said:
    own = scene.wanted.store
    said = _single(scene, "StreamReady", "store") if own else Said("StreamReady", "True", reasons.EXTERNAL)
    progress = scene.observed.progress
    if said.true and progress is not None and progress.store_failing:
        return Said("StreamReady", "False", reasons.STORE_UNAVAILABLE, "the store refuses or misses writes; work waits")
    return said


def _scheduler(scene: Scene) -> Said:
    said = _single(scene, "SchedulerReady", "scheduler")
    asked, observed = scene.observed.unanswered_since, scene.observed
    if said.true and asked is not None and observed.now >= asked + scene.timings.unanswered_s:
        return Said(
            "SchedulerReady", "False", reasons.SCHEDULER_SILENT, "the scheduler pod is ready but does not answer"
        )
    return said


def _trainer(scene: Scene) -> Said:
    if scene.trainers.done:
        return Said("TrainerReady", "True", reasons.TRAINING_DONE)
    found = problems(scene, "trainer")
    if found:
        return Said("TrainerReady", "False", found[0].reason, found[0].message)
    count, wanted = len(scene.census.of_role("trainer")), scene.wanted.trainers
    if count < wanted:
        missing = [pod_name(scene.census.job, "trainer", index) for index in range(wanted)]
        blocked = [name for name in missing if name in scene.census.foreign]
        if blocked:
            return Said("TrainerReady", "False", reasons.NAME_TAKEN, taken(blocked[0]))
        return _absent(scene, "TrainerReady", f"{count} of {wanted} trainer pods exist")
    waiting = Said("TrainerReady", "False", reasons.TRAINER_NOT_REGISTERED, "waiting for the trainer to register")
    progress = scene.observed.progress
    if progress is None:
        old = held(scene.old, "TrainerReady", waiting)
        return old if old.true else waiting
    return Said("TrainerReady", "True", reasons.PODS_READY) if progress.trainer_registered else waiting


def ready_rollouts(census: Census) -> list[PodView]:
    """Replicas that take leases."""
    return [pod for pod in census.of_role("rollout") if pod.live and pod.ready]


def _rollout(scene: Scene) -> Said:
    ready, wanted = len(ready_rollouts(scene.census)), scene.wanted
    if ready >= wanted.min_rollouts:
        return Said("RolloutReady", "True", reasons.PODS_READY)
    found = problems(scene, "rollout")
    if found and found[0].grave:
        return Said("RolloutReady", "False", found[0].reason, found[0].message)
    if not scene.census.of_role("rollout") and not bound(scene.census, scene.trainers, wanted):
        said = "replicas are made once all trainer pods have a node"
        return Said("RolloutReady", "False", reasons.WAITING_FOR_TRAINER, said)
    said = f"{ready} replicas are ready; at least {wanted.min_rollouts} must be"
    if found:
        said += f": {found[0].message}"
    return Said("RolloutReady", "False", reasons.TOO_FEW_REPLICAS, said)


def _weights(scene: Scene) -> Said:
    progress = scene.observed.progress
    if progress is None:
        return held(scene.old, "WeightsInSync", Said("WeightsInSync", "Unknown", reasons.NOT_KNOWN))
    if progress.published is None:
        said = "the trainer has not published the first weights yet"
        return Said("WeightsInSync", "False", reasons.NOT_PUBLISHED, said)
    ready = {replica_name(pod) for pod in ready_rollouts(scene.census)}
    least = progress.published - scene.wanted.lag_allowed
    behind = [r.name for r in progress.replicas if r.name in ready and r.version is not None and r.version < least]
    if behind:
        said = f"{names(behind)}: weights older than version {least}; the newest is {progress.published}"
        return Said("WeightsInSync", "False", reasons.REPLICAS_BEHIND, said)
    return Said("WeightsInSync", "True", reasons.IN_SYNC)
