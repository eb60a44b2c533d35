"""Taking pods away in order: replicas and trainers first, with their grace to hand back and to write a checkpoint.

Then the scheduler, which must outlive them. The store stays while the job is suspended, and as asked after the end.
"""

from drumroll_operator.actions import Action, DeleteJob, DeletePod
from drumroll_operator.census import Census
from drumroll_operator.observed import Observed, PodView
from drumroll_operator.problems import overdue
from drumroll_operator.timings import Timings
from drumroll_operator.wanted import Keep

_WORKERS = ("trainer", "rollout")


def suspend_actions(census: Census) -> list[Action]:
    """Everything but the store goes; what has ended goes as well."""
    workers = [pod for pod in census.own if pod.role in _WORKERS]
    going = workers or [pod for pod in census.own if pod.role == "scheduler"]
    return [_delete(pod) for pod in going if not pod.deleting]


def stopped(census: Census) -> bool:
    """Only the store is left, or nothing."""
    return all(pod.role == "store" for pod in census.own)


def clean_up_actions(
    observed: Observed, census: Census, *, end: float, keep: Keep, leave_s: float = 0.0
) -> tuple[list[Action], list[float]]:
    """After the end: what still runs `leave_s` later goes, what has ended stays for its logs.

    (actions, times when more is due).
    """
    running = [pod for pod in census.own if not pod.ended]
    workers = [pod for pod in running if pod.role in _WORKERS]
    going = workers or [pod for pod in running if pod.role == "scheduler"]
    actions: list[Action] = []
    due: list[tuple[float, Action]] = [(end + leave_s, _delete(pod)) for pod in going if not pod.deleting]
    due += [(end + keep.pods_s, _delete(pod)) for pod in census.own if pod.ended and not pod.deleting]
    if not [pod for pod in running if pod.role != "store"]:
        stores = [pod for pod in running if pod.role == "store" and not pod.deleting]
        due += [(end + keep.store_s, _delete(pod)) for pod in stores]
    if keep.job_s is not None:
        due.append((end + keep.job_s, DeleteJob(observed.job.uid)))
    actions += [action for at, action in due if at <= observed.now]
    return actions, [at for at, _ in due if at > observed.now]


def force_actions(observed: Observed, census: Census, timings: Timings) -> tuple[list[Action], list[float]]:
    """Pods on lost nodes are deleted by force: the protocol fences them. Never a running store."""
    leaving = [pod for pod in census.own if pod.delete_by is not None and (pod.ended or pod.role != "store")]
    late = [pod for pod in leaving if overdue(pod, observed.now, timings)]
    later = [pod.delete_by + timings.overdue_s for pod in leaving if pod not in late and pod.delete_by is not None]
    return [DeletePod(pod.name, pod.uid, grace_s=0) for pod in late], later


def _delete(pod: PodView) -> DeletePod:
    return DeletePod(pod.name, pod.uid)
