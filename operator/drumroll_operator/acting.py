"""Does one action of a plan. Each may be done twice without harm; the API server's answers go into the caches at once.

Nothing is deleted or written unless this process may still act: it holds the Lease, and has renewed it lately.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from drumroll.errors import TemporaryError
from drumroll_operator.actions import Action, Apply, CreatePod, DeleteChild, DeleteJob, DeletePod, Record, SetLive
from drumroll_operator.cluster import KINDS, PODS, RLJOBS, ApiError, Cluster
from drumroll_operator.job_cache import Job
from drumroll_operator.observed import Applied, Failure
from drumroll_operator.pod_cache import PodCache
from drumroll_operator.pod_view import pod_view
from drumroll_operator.progress import Poller
from drumroll_operator.recorder import Recorder
from drumroll_operator.rendering import Renderer


class NotLeading(TemporaryError):
    """This process may not act any more."""


@dataclass(slots=True)
class Memory:
    """What the shell knows of one job beside the caches; lost with the process, without harm."""

    uid: str
    since: float
    """When it began, Unix seconds."""
    applied: dict[tuple[str, str], Applied] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    live_set: dict[str, int] = field(default_factory=dict)
    status_written: float | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    """Everything that actions touch."""

    cluster: Cluster
    pods: PodCache
    renderer: Renderer
    poller: Poller
    recorder: Recorder
    may_act: Callable[[], bool]

    def check(self) -> None:
        """Raise NotLeading unless this process may act."""
        if not self.may_act():
            raise NotLeading("the Lease was not renewed in time")

    async def do(self, job: Job, action: Action, memory: Memory, *, now: float) -> None:
        """Do it.

        Raises:
            ApiError: refused or not answered.
            progress.Refused: the scheduler refuses a live value.
            JobRefused: a manifest cannot be rendered.
            NotLeading: nothing was done.
        """
        self.check()
        match action:
            case Record():
                self.recorder.record(job.view, action)
            case Apply(child):
                await self.cluster.apply(self.renderer.child(job, child))
                memory.applied[child.kind, child.name] = Applied(child, now)
            case DeleteChild(child):
                await self._delete(job, child.kind, child.name)
                memory.applied.pop((child.kind, child.name), None)
            case CreatePod():
                await self._create(job, action)
            case DeletePod():
                await self._delete_pod(job, action)
            case SetLive(name, value):
                await self.poller.set_live(job.view.uid, name, value)
                memory.live_set[name] = value
            case DeleteJob(uid):
                await self._delete(job, RLJOBS.name, job.view.name, uid=uid)

    async def _create(self, job: Job, action: CreatePod) -> None:
        manifest = self.renderer.pod(job, action.role, action.index, action.set_number)
        try:
            raw = await self.cluster.create(manifest)
        except ApiError as error:
            if error.code != 409 or error.reason != "AlreadyExists":
                raise
            raw = await self.cluster.get(PODS, job.view.namespace, action.name)
            self.pods.changed(raw)
            if pod_view(raw).job_uid != job.view.uid:
                raise error from None
            return
        self.pods.changed(raw)

    async def _delete_pod(self, job: Job, action: DeletePod) -> None:
        namespace = job.view.namespace
        try:
            raw = await self.cluster.delete(PODS, namespace, action.name, uid=action.uid, grace_s=action.grace_s)
        except ApiError as error:
            if error.code != 404 and not (error.code == 409 and "UID in" in error.message):
                raise
            self.pods.gone((namespace, action.name), action.uid)
            return
        if raw.get("kind") == PODS.name:
            self.pods.changed(raw)

    async def _delete(self, job: Job, kind: str, name: str, *, uid: str = "") -> None:
        try:
            await self.cluster.delete(KINDS[kind], job.view.namespace, name, uid=uid)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
