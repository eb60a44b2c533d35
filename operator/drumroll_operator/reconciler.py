"""Brings one job nearer to what is wanted: observe, plan, write the status, act. Any number of times, from any state.

The status is written before the actions that rely on it: a charge, a new trainer set and the end of a job are durable
before anything is done. If the write fails, nothing is done. Actions stop at the first that fails; the failure is kept
and handed to the next plan.
"""

import logging
from collections.abc import Callable
from time import perf_counter

from drumroll.api.status import RLJobStatus
from drumroll.clock import Clock, SystemClock
from drumroll_operator.acting import Actor, Memory
from drumroll_operator.actions import Action, Plan, Record
from drumroll_operator.cluster import RLJOBS, ApiError
from drumroll_operator.failures import failure_of, refusal
from drumroll_operator.job_cache import Job, JobCache
from drumroll_operator.observed import Failure, FailureKind, Observed, PodPhase
from drumroll_operator.plan import plan
from drumroll_operator.progress import Refused, Target
from drumroll_operator.resolve import SCHEDULER_PORT, JobRefused
from drumroll_operator.watch import ObjectName

logger = logging.getLogger(__name__)

_FORGET_FAILURES_S = 3600.0

Note = Callable[[str, float], None]
"""Told of each action done or failed: its class's name with `ok` or the failure's kind, and seconds."""


class Reconciler:
    """The loop's body."""

    def __init__(
        self,
        jobs: JobCache,
        actor: Actor,
        *,
        clock: Clock | None = None,
        note: Note | None = None,
        planner: Callable[[Observed], Plan] = plan,
    ) -> None:
        self._jobs = jobs
        self._actor = actor
        self._pods = actor.pods
        self._clock = clock or SystemClock()
        self._note = note or (lambda what, seconds: None)
        self._plan = planner
        self._memories: dict[ObjectName, Memory] = {}
        self.status_failure: ApiError | None = None
        """Why the last write of a status failed; None: it did not."""

    async def reconcile(self, name: ObjectName) -> float | None:
        """One round. Seconds until something is due; None: nothing is.

        Raises:
            ApiError: the status cannot be written.
            NotLeading: this process may not act any more.
        """
        job = self._jobs.get(name)
        if job is None:
            memory = self._memories.pop(name, None)
            if memory is not None:
                self._actor.poller.drop(memory.uid)
            return None
        memory = self._memory(name, job)
        self._follow_scheduler(name, job)
        decided = self._plan(self.observe(name, job, memory))
        if decided.status is not None and not await self._write(job, decided.status, memory):
            return 0.0
        job = self._jobs.get(name) or job
        done = await self._act(job, decided, memory)
        return 0.0 if done else decided.requeue_s

    def keep(self) -> None:
        """Drop what is known of jobs that are gone."""
        uids = {job.view.uid for job in self._jobs}
        self._actor.renderer.keep(uids)
        for name in [name for name, memory in self._memories.items() if memory.uid not in uids]:
            del self._memories[name]

    def observe(self, name: ObjectName, job: Job, memory: Memory) -> Observed:
        """All that one plan is made from."""
        rendered = self._actor.renderer.rendered(job)
        answers = self._actor.poller.answers(job.view.uid)
        return Observed(
            now=self._clock.wall(),
            job=job.view,
            pods=self._pods.of_job(name),
            progress=answers.progress,
            unanswered_since=answers.unanswered_since,
            refusal=rendered.refusal,
            children=rendered.children,
            config=rendered.config,
            job_dir=rendered.job_dir,
            applied=tuple(memory.applied.values()),
            live_set=dict(memory.live_set),
            failures=tuple(memory.failures.values()),
            status_written=memory.status_written,
            since=memory.since,
        )

    def _memory(self, name: ObjectName, job: Job) -> Memory:
        memory = self._memories.get(name)
        now = self._clock.wall()
        if memory is None or memory.uid != job.view.uid:
            if memory is not None:
                self._actor.poller.drop(memory.uid)
            memory = self._memories[name] = Memory(job.view.uid, now)
        old = [key for key, failure in memory.failures.items() if now - failure.at > _FORGET_FAILURES_S]
        for key in old:
            del memory.failures[key]
        return memory

    def _follow_scheduler(self, name: ObjectName, job: Job) -> None:
        """Have the job's scheduler asked while it runs."""
        poller, uid = self._actor.poller, job.view.uid
        scheduler = next((p for p in self._pods.of_job(name) if p.role == "scheduler" and p.job_uid == uid), None)
        if scheduler is None or scheduler.phase is not PodPhase.RUNNING or scheduler.deleting:
            poller.drop(uid)
            return
        ip = self._pods.address((name[0], scheduler.name))
        if ip is not None:
            host = f"[{ip}]" if ":" in ip else ip
            renderer, server = self._actor.renderer, f"{name[1]}-scheduler"
            address = f"{host}:{SCHEDULER_PORT}"
            poller.want(Target(name, uid, address, renderer.token(job), renderer.authority(job), server))

    async def _write(self, job: Job, status: RLJobStatus, memory: Memory) -> bool:
        """Write the status; False where the job has changed meanwhile or is gone: plan again."""
        self._actor.check()
        view, cluster = job.view, self._actor.cluster
        try:
            raw = await cluster.write_status(view.namespace, view.name, status.to_wire(), resource_version=job.version)
        except ApiError as error:
            if error.code not in (404, 409):
                self.status_failure = error
                raise
            await self._look_again(view.namespace, view.name)
            return False
        self.status_failure = None
        memory.status_written = self._clock.wall()
        self._jobs.changed(raw)
        return True

    async def _look_again(self, namespace: str, name: str) -> None:
        try:
            self._jobs.changed(await self._actor.cluster.get(RLJOBS, namespace, name))
        except ApiError as error:
            if error.code != 404:
                raise
            self._jobs.forget((namespace, name))

    async def _act(self, job: Job, decided: Plan, memory: Memory) -> bool:
        """Do the actions; whether there is reason to plan again at once."""
        changed = False
        for action in decided.actions:
            begun = perf_counter()
            failure = await self._do(job, action, memory)
            kind = type(action).__name__
            self._note(f"{kind} {failure.kind.value if failure else 'ok'}", perf_counter() - begun)
            if failure is not None:
                memory.failures[action.key] = failure
                logger.warning(
                    "%s/%s: %s: %s: %s", job.view.namespace, job.view.name, action.key, failure.kind, failure.message
                )
                return True
            memory.failures.pop(action.key, None)
            changed = changed or not isinstance(action, Record)
        return changed

    async def _do(self, job: Job, action: Action, memory: Memory) -> Failure | None:
        now = self._clock.wall()
        before = memory.failures.get(action.key)
        try:
            await self._actor.do(job, action, memory, now=now)
        except ApiError as error:
            return failure_of(action.key, error, at=now, before=before)
        except Refused as error:
            kind = FailureKind.UNAVAILABLE if error.temporary else FailureKind.REFUSED
            return refusal(action.key, kind, error, at=now, before=before)
        except JobRefused as error:
            return refusal(action.key, FailureKind.INVALID, error, at=now, before=before)
        return None
