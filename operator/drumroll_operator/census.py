"""A job's pods, sorted: who is ours, in which role, and which names others hold."""

from collections.abc import Iterable
from dataclasses import dataclass

from drumroll_operator.labels import part_name, pod_name
from drumroll_operator.observed import JobView, PodView
from drumroll_operator.substrate import ROLES, Role


@dataclass(frozen=True, slots=True)
class Census:
    """Pods of one job."""

    job: str
    own: tuple[PodView, ...]
    """In the order of roles and indices."""
    foreign: frozenset[str]
    """Names of pods with this job's name that belong to an earlier job, or to nobody we know."""

    @classmethod
    def of(cls, job: JobView, pods: Iterable[PodView]) -> "Census":
        """Sort them."""
        own, foreign = [], []
        for pod in pods:
            if pod.job_uid == job.uid and pod.role is not None:
                own.append(pod)
            else:
                foreign.append(pod.name)
        own.sort(key=lambda pod: (ROLES.index(pod.role or "trainer"), pod.index, pod.name))
        return cls(job.name, tuple(own), frozenset(foreign))

    def of_role(self, *roles: Role) -> list[PodView]:
        """Own pods of these roles."""
        return [pod for pod in self.own if pod.role in roles]

    def single(self, role: Role) -> PodView | None:
        """The pod of a role that has one."""
        name = pod_name(self.job, role)
        return next((pod for pod in self.own if pod.role == role and pod.name == name), None)


def replica_name(pod: PodView) -> str:
    """DRUMROLL_REPLICA of a pod, such as rollout-3."""
    return part_name(pod.role or "rollout", pod.index)
