"""Why a pod that has not ended is not ready: one named reason and a sentence."""

from dataclasses import dataclass

from drumroll_operator import reasons
from drumroll_operator.observed import PodPhase, PodView
from drumroll_operator.texts import clean
from drumroll_operator.timings import Timings
from drumroll_operator.verdicts import verdict


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something is not as it should be."""

    reason: str
    message: str
    grave: bool = False
    """It does not go away by itself within the usual time of a start: Degraded names it."""


_WAITING = {
    "ErrImagePull": reasons.IMAGE_PULL_BACK_OFF,
    "ImagePullBackOff": reasons.IMAGE_PULL_BACK_OFF,
    "ErrImageNeverPull": reasons.IMAGE_PULL_BACK_OFF,
    "InvalidImageName": reasons.IMAGE_PULL_BACK_OFF,
    "ImageInspectError": reasons.IMAGE_PULL_BACK_OFF,
    "RegistryUnavailable": reasons.IMAGE_PULL_BACK_OFF,
    "SignatureValidationFailed": reasons.IMAGE_PULL_BACK_OFF,
    "CreateContainerConfigError": reasons.CREATE_CONTAINER_CONFIG_ERROR,
    "CreateContainerError": reasons.CREATE_CONTAINER_ERROR,
    "RunContainerError": reasons.CREATE_CONTAINER_ERROR,
    "PostStartHookError": reasons.CREATE_CONTAINER_ERROR,
    "CrashLoopBackOff": reasons.CRASH_LOOP_BACK_OFF,
}


def problem(pod: PodView, now: float, timings: Timings) -> Problem | None:
    """What keeps it from being ready; None where it is."""
    if pod.ended:
        judged = verdict(pod)
        return Problem(judged.reason, judged.message, grave=True)
    if pod.delete_by is not None:
        return _leaving(pod, pod.delete_by, now, timings)
    if pod.reason == "NodeLost" or pod.phase is PodPhase.UNKNOWN:
        return Problem(reasons.NODE_LOST, f"{pod.name}: node {pod.node} does not answer", grave=True)
    return None if pod.ready else _not_ready(pod, now, timings)


def overdue(pod: PodView, now: float, timings: Timings) -> bool:
    """It is still there long after its grace: its node is lost."""
    return pod.delete_by is not None and now >= pod.delete_by + timings.overdue_s


def _leaving(pod: PodView, delete_by: float, now: float, timings: Timings) -> Problem:
    if not overdue(pod, now, timings):
        return Problem(reasons.TERMINATING, f"{pod.name} is being deleted and finishes within its grace")
    remedy = ""
    if pod.role == "store":
        remedy = f"; bring the node back, or once it is surely off: kubectl delete pod {pod.name} --force"
    said = f"{pod.name} has not gone {timings.overdue_s:.0f} s after its grace: node {pod.node} is lost{remedy}"
    return Problem(reasons.NODE_LOST, said, grave=True)


def _not_ready(pod: PodView, now: float, timings: Timings) -> Problem:
    known = _WAITING.get(pod.waiting)
    if known is not None:
        said = clean(pod.waiting_message) or pod.waiting
        return Problem(known, f"{pod.name}: {said}", grave=True)
    if pod.unschedulable:
        return Problem(reasons.UNSCHEDULABLE, f"{pod.name}: {clean(pod.unschedulable)}", grave=True)
    if not pod.node:
        return Problem(reasons.SCHEDULING, f"{pod.name} waits for a node")
    if pod.phase is PodPhase.RUNNING:
        return Problem(reasons.STARTING, f"{pod.name} runs and is not ready yet")
    if pod.waiting == "PodInitializing":
        return Problem(reasons.PREPARING_DATA, f"{pod.name} is being initialised")
    if now >= (pod.bound_at or pod.created) + timings.stuck_creating_s:
        said = f"{pod.name} has waited for its volumes, network or image for over {timings.stuck_creating_s:.0f} s"
        return Problem(reasons.STUCK_CREATING, f"{said}: kubectl describe pod {pod.name}", grave=True)
    return Problem(reasons.CONTAINER_CREATING, f"{pod.name} is being prepared on node {pod.node}")
