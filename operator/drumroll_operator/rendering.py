"""A job's manifests for the shell: rendered when needed, while what plans need of them is kept per generation."""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from drumroll.job import ResolvedJob
from drumroll_operator import reasons
from drumroll_operator.job_cache import Job
from drumroll_operator.manifests import Manifest
from drumroll_operator.objects import certificates, children, config_name, manifest_digest
from drumroll_operator.observed import Child, Refusal
from drumroll_operator.pods import pod
from drumroll_operator.resolve import JobRefused, resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import Role
from drumroll_operator.tokens import derive

logger = logging.getLogger(__name__)

_RECENT = 64
"""Jobs whose manifests are kept at hand: more than there are workers."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a plan knows of a job's manifests."""

    children: tuple[Child, ...] = ()
    config: str = ""
    job_dir: str = ""
    refusal: Refusal | None = None


class Renderer:
    """Renders with one operator's settings and key."""

    def __init__(self, settings: OperatorSettings, key: bytes) -> None:
        self._settings = settings
        self._key = key
        self._known: dict[str, tuple[int, Rendered]] = {}
        self._recent: OrderedDict[tuple[str, int], tuple[ResolvedJob, list[Manifest]]] = OrderedDict()
        self._authorities: dict[str, bytes | None] = {}

    def rendered(self, job: Job) -> Rendered:
        """The facts; a refusal where the job cannot be rendered."""
        uid, generation = job.view.uid, job.view.generation
        known = self._known.get(uid)
        if known is not None and known[0] == generation:
            return known[1]
        made = self._render(job)
        self._known[uid] = generation, made
        return made

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all other jobs."""
        for known in (self._known, self._authorities):
            for uid in known.keys() - set(uids):
                del known[uid]

    def child(self, job: Job, wanted: Child) -> Manifest:
        """The manifest of a child.

        Raises:
            JobRefused: the job has no such child.
        """
        for manifest in self._work(job)[1]:
            if (manifest["kind"], manifest["metadata"]["name"]) == (wanted.kind, wanted.name):
                return manifest
        raise JobRefused(reasons.INVALID_SPEC, f"the job has no {wanted.kind} {wanted.name}")

    def pod(self, job: Job, role: Role, index: int, set_number: int) -> Manifest:
        """The manifest of a pod.

        Raises:
            JobRefused: it cannot be rendered.
        """
        return pod(self._work(job)[0], self._settings, role, index, set_number=set_number)

    def token(self, job: Job) -> str:
        """The operator's token for the job's scheduler."""
        return derive(self._key, job.view.uid, "token", "operator")

    def authority(self, job: Job) -> bytes | None:
        """PEM of the authority of the job's scheduler; None where it does not encrypt."""
        view = job.view
        if view.uid not in self._authorities:
            made = certificates(
                self._settings, self._key, uid=view.uid, name=view.name, namespace=view.namespace, created=view.created
            )
            self._authorities[view.uid] = made["ca.crt"].encode() if made else None
        return self._authorities[view.uid]

    def _work(self, job: Job) -> tuple[ResolvedJob, list[Manifest]]:
        """The resolved job and its children: a job's objects are written in one go, and rendered once for it."""
        if job.model is None:
            raise JobRefused(reasons.INVALID_SPEC, "the spec does not parse")
        at = job.view.uid, job.view.generation
        found = self._recent.pop(at, None)
        if found is None:
            resolved = resolve(job.model, self._settings)
            found = resolved, children(resolved, self._settings, self._key, created=job.view.created)
        self._recent[at] = found
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
        return found

    def _render(self, job: Job) -> Rendered:
        if job.refusal is not None:
            return Rendered(refusal=job.refusal)
        try:
            resolved, manifests = self._work(job)
            pod(resolved, self._settings, "trainer", 0)
            pod(resolved, self._settings, "rollout", 0)
            pod(resolved, self._settings, "scheduler", 0)
        except JobRefused as error:
            return Rendered(refusal=Refusal(error.reason, str(error)))
        return Rendered(
            children=tuple(Child(m["kind"], m["metadata"]["name"], manifest_digest(m)) for m in manifests),
            config=config_name(resolved),
            job_dir=resolved.layout.job_dir,
        )
