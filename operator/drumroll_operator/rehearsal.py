"""Plans carried out step by step on the API server in memory, with stale views and crashes between any two effects.

What the reconciler does with asyncio, without asyncio: for property tests and for studying a plan by hand. It shares
the reconciler's caches and its reading of errors, so that only the order of calls is written twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from drumroll_operator import labels
from drumroll_operator.actions import Action, Apply, CreatePod, DeleteChild, DeleteJob, DeletePod, Plan, Record, SetLive
from drumroll_operator.cluster import KINDS, PODS, RLJOBS, ApiError, Raw
from drumroll_operator.failures import failure_of
from drumroll_operator.job_cache import JobCache
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.observed import Applied, Child, Failure, JobView, Observed, Progress
from drumroll_operator.plan import plan
from drumroll_operator.pod_cache import PodCache
from drumroll_operator.pod_view import pod_view
from drumroll_operator.timings import Timings
from drumroll_operator.watch import Sink

NAMESPACE, NAME = "lab", "demo"
_OBJECT = (NAMESPACE, NAME)


@dataclass(slots=True)
class Rehearsal:
    """One operator that looks after one job. A crash is a new instance."""

    api: MemoryApi
    progress: Callable[[str], Progress | None]
    """What the job's scheduler answers, by the job's uid."""
    set_live: Callable[[str, str, int], None]
    """(job's uid, name, value): told to the scheduler."""
    gpus: int = 1
    """Of each trainer and rollout pod."""
    timings: Timings = field(default_factory=Timings)
    events: list[Record] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    """Actions that have been done, oldest first."""
    pods: PodCache = field(init=False)
    jobs: JobCache = field(init=False)
    since: float = field(init=False)
    applied: dict[tuple[str, str], Applied] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    written: float | None = None
    _seen: int = 0
    _uid: str = ""

    def __post_init__(self) -> None:
        self.pods, self.jobs = PodCache(_ignore), JobCache(_ignore)
        self.since = self.api.clock.wall()
        for raw in self.api.list_all(RLJOBS, NAMESPACE):
            self.jobs.changed(raw)
        for raw in self.api.list_all(PODS, NAMESPACE):
            self.pods.changed(raw)
        self._seen = len(self.api.history)

    def catch_up(self, most: int | None = None) -> None:
        """Hear of the next changes: `most` of them, or all."""
        stop = len(self.api.history) if most is None else min(len(self.api.history), self._seen + most)
        while self._seen < stop:
            happening = self.api.history[self._seen]
            self._seen += 1
            sinks: dict[str, Sink] = {"Pod": self.pods, "RLJob": self.jobs}
            sink = sinks.get(happening.object["kind"])
            if sink is not None and happening.type == "DELETED":
                sink.deleted(happening.object)
            elif sink is not None:
                sink.changed(happening.object)

    def observe(self) -> Observed | None:
        """What a plan would be made from now; None: there is no such job."""
        job = self.jobs.get(_OBJECT)
        if job is None:
            return None
        view = job.view
        if view.uid != self._uid:
            self._uid, self.written, self.since = view.uid, None, self.api.clock.wall()
            self.applied, self.failures, self.live = {}, {}, {}
        children = wanted_children(view)
        return Observed(
            now=self.api.clock.wall(),
            job=view,
            pods=self.pods.of_job(_OBJECT),
            progress=self.progress(view.uid),
            refusal=job.refusal,
            children=children,
            config=children[0].name if children else "",
            job_dir=f"/volume/{NAME}-{view.uid}",
            applied=tuple(self.applied.values()),
            live_set=dict(self.live),
            failures=tuple(self.failures.values()),
            status_written=self.written,
            since=self.since,
        )

    def plan(self) -> Plan:
        """The plan of now; an empty one where there is no job."""
        observed = self.observe()
        return Plan() if observed is None else plan(observed, self.timings)

    def effects(self) -> Iterator[str]:
        """One reconciliation. Yields before each write, naming it: whoever stops there has crashed there."""
        observed = self.observe()
        if observed is None:
            return
        todo = plan(observed, self.timings)
        if todo.status is not None:
            yield "status"
            if not self._write_status(observed, todo):
                return
        for action in todo.actions:
            if isinstance(action, Record):
                self.events.append(action)
                continue
            yield action.key
            if not self._do(observed.job, action):
                return

    def reconcile(self) -> bool:
        """One whole reconciliation; False where there was nothing to write."""
        return bool(list(self.effects()))

    def _write_status(self, observed: Observed, todo: Plan) -> bool:
        job = self.jobs.get(_OBJECT)
        if job is None or todo.status is None:
            return False
        try:
            raw = self.api.write_status(NAMESPACE, NAME, todo.status.to_wire(), resource_version=job.version)
        except ApiError:
            return False
        self.jobs.changed(raw)
        self.written = observed.now
        return True

    def _do(self, job: JobView, action: Action) -> bool:
        try:
            self._call(job, action)
        except ApiError as error:
            now = self.api.clock.wall()
            self.failures[action.key] = failure_of(action.key, error, at=now, before=self.failures.get(action.key))
            return False
        self.failures.pop(action.key, None)
        self.done.append(action)
        return True

    def _call(self, job: JobView, action: Action) -> None:
        match action:
            case Apply(child):
                self.api.apply(child_manifest(job, child))
                self.applied[child.kind, child.name] = Applied(child, self.api.clock.wall())
            case DeleteChild(child):
                self._delete(child.kind, child.name)
                self.applied.pop((child.kind, child.name), None)
            case CreatePod():
                self._create(job, action)
            case DeletePod(name, uid, grace_s):
                self._delete("Pod", name, uid=uid, grace_s=grace_s)
            case DeleteJob(uid):
                self._delete("RLJob", NAME, uid=uid)
            case SetLive(name, value):
                self.set_live(job.uid, name, value)
                self.live[name] = value

    def _create(self, job: JobView, action: CreatePod) -> None:
        try:
            self.pods.changed(self.api.create(pod_manifest(job, action, gpus=self.gpus)))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            there = self.api.get(PODS, NAMESPACE, action.name)
            self.pods.changed(there)
            if pod_view(there).job_uid != job.uid:
                raise

    def _delete(self, kind: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        try:
            answer = self.api.delete(KINDS[kind], NAMESPACE, name, uid=uid, grace_s=grace_s)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return
        if kind == "Pod":
            self.pods.changed(answer)


def wanted_children(job: JobView) -> tuple[Child, ...]:
    """A ConfigMap whose name follows the live values, and two others."""
    if job.spec is None:
        return ()
    revision = f"{NAME}-config-{job.spec.rollout.replicas}-{job.spec.steps}"
    return tuple(
        Child(kind, name, "1") for kind, name in (("ConfigMap", revision), ("Secret", NAME), ("Service", NAME))
    )


def job_manifest(spec: Raw) -> Raw:
    """An RLJob of the laboratory."""
    return {
        "apiVersion": RLJOBS.api_version,
        "kind": RLJOBS.name,
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": spec,
    }


def child_manifest(job: JobView, child: Child) -> Raw:
    """A child, as little as it takes."""
    return {"apiVersion": KINDS[child.kind].api_version, "kind": child.kind, "metadata": _metadata(job, child.name)}


def pod_manifest(job: JobView, action: CreatePod, *, gpus: int) -> Raw:
    """A pod, as little as it takes."""
    marks = {labels.ROLE: action.role, labels.INDEX: str(action.index)}
    marks |= {labels.SET: str(action.set_number)} if action.set_number else {}
    held = {"nvidia.com/gpu": str(gpus)} if gpus and action.role in ("trainer", "rollout") else {}
    config = wanted_children(job)[0].name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, action.name, **marks),
        "spec": {
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": action.role, "resources": {"limits": {**held, "memory": "2Gi"}}}],
            "volumes": [{"name": "drumroll-job", "configMap": {"name": config}}],
        },
    }


def _metadata(job: JobView, name: str, **marks: str) -> Raw:
    owner = {"apiVersion": RLJOBS.api_version, "kind": "RLJob", "name": NAME, "uid": job.uid, "controller": True}
    return {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {labels.JOB: NAME, labels.UID: job.uid, **marks},
        "ownerReferences": [owner],
    }


def _ignore(name: tuple[str, str]) -> None:
    """Nobody waits for news: reconciliations are called for."""
