"""A world for one job: API server, kubelet, a training that moves while its pods run, and an operator that may crash.

Deterministic: nothing moves but by calls, time neither.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drumroll.api.status import Condition, RLJobStatus
from drumroll.clock import ManualClock
from drumroll_operator import labels
from drumroll_operator.actions import Plan
from drumroll_operator.cluster import PODS, RLJOBS, Raw
from drumroll_operator.conditions import find
from drumroll_operator.labels import pod_name
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_kubelet import MemoryKubelet
from drumroll_operator.observed import Progress, ReplicaProgress
from drumroll_operator.pod_view import pod_view
from drumroll_operator.rehearsal import NAME, NAMESPACE, Rehearsal, job_manifest
from drumroll_operator.timings import Timings

SPEC: Mapping[str, Any] = {
    "model": {"path": "m"},
    "data": {"train": {"path": "d"}},
    "reward": {"type": "math"},
    "steps": 5,
    "rollout": {"replicas": 2},
}


@dataclass(slots=True)
class Ledger:
    """What the job's volume and store hold: it outlives pods."""

    steps: int
    done: int = 0
    version: int = 0
    samples: int = 0
    failed: str = ""
    store_failing: bool = False
    live: dict[str, int] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The scheduler's."""
        if self.failed:
            return "Failed"
        return "Complete" if self.done >= self.steps else "Running"


class Laboratory:
    """The world. `operator` is the one that is alive."""

    def __init__(self, spec: Mapping[str, Any] = SPEC, *, gpus: int = 1, timings: Timings | None = None) -> None:
        self.clock = ManualClock(1_800_000_000.0)
        self.api = MemoryApi(self.clock)
        self.kubelet = MemoryKubelet(self.api)
        self.ledgers: dict[str, Ledger] = {}
        self.heard: dict[str, Progress] = {}
        self.gpus = gpus
        self.timings = timings or Timings()
        self.submit(spec)
        self.operator = self.start_operator()

    # -- the user ------------------------------------------------------------------------------------------------

    def submit(self, spec: Mapping[str, Any] = SPEC) -> None:
        """Create the job."""
        self.steps = int(spec["steps"])
        self.api.create(job_manifest(dict(spec)))

    def edit(self, **changes: Any) -> None:
        """Change spec fields; a dotted name is written with a double underscore."""

        def change(raw: Raw) -> None:
            for path, value in changes.items():
                *parents, last = path.split("__")
                where = raw["spec"]
                for parent in parents:
                    where = where.setdefault(parent, {})
                where[last] = value

        self.api.edit(RLJOBS, NAMESPACE, NAME, change)

    def delete_job(self) -> None:
        """The user deletes it; what it owns is collected."""
        self.api.delete(RLJOBS, NAMESPACE, NAME)

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def job(self) -> Raw:
        """The RLJob as it is stored."""
        return self.api.objects["RLJob", NAMESPACE, NAME]

    @property
    def status(self) -> RLJobStatus:
        """Its status."""
        return RLJobStatus.model_validate(self.job.get("status") or {})

    def condition(self, type_: str) -> Condition:
        """One of its conditions; it must exist."""
        found = find(self.status.conditions, type_)
        assert found is not None, type_
        return found

    def said(self, type_: str) -> tuple[str, str]:
        """(status, reason) of a condition."""
        return self.condition(type_).status, self.condition(type_).reason

    def pods(self, role: str | None = None) -> list[Raw]:
        """Pods of the job's name that are there, in the order of their names."""
        marks = f"{labels.JOB}={NAME}" + (f",{labels.ROLE}={role}" if role else "")
        return self.api.select(PODS, NAMESPACE, marks)

    def names(self, role: str | None = None) -> list[str]:
        """Their names."""
        return [pod["metadata"]["name"] for pod in self.pods(role)]

    def pod(self, role: Any, index: int = 0) -> Raw:
        """One of them."""
        name = pod_name(NAME, role, index)
        return next(pod for pod in self.pods() if pod["metadata"]["name"] == name)

    def uids(self) -> dict[str, str]:
        """Name to uid."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    # -- the training --------------------------------------------------------------------------------------------

    def ledger(self, uid: str) -> Ledger:
        """Of a job."""
        return self.ledgers.setdefault(uid, Ledger(self.steps))

    def train(self, steps: int = 1) -> None:
        """Make steps, if everything that it takes is ready; the last one ends the job."""
        uid = self.job["metadata"]["uid"]
        if not self._all_ready(uid):
            return
        ledger = self.ledger(uid)
        steps = min(ledger.steps - ledger.done, steps)
        ledger.done += steps
        ledger.version += steps
        ledger.samples += 4 * steps

    def rewind(self, steps: int = 1) -> None:
        """Samples of trained steps are lost: back to a checkpoint, under a new version."""
        ledger = self.ledger(self.job["metadata"]["uid"])
        if ledger.phase == "Running":
            ledger.done = max(0, ledger.done - steps)
            ledger.version += 1

    def end_processes(self) -> None:
        """Once the training is over, trainer, replicas and at last the scheduler end by themselves."""
        uid = self.job["metadata"]["uid"]
        ledger = self.ledgers.get(uid)
        if ledger is None or ledger.phase == "Running" or not self._serving(uid):
            return
        running = [p for p in self.pods() if _of(p, uid) and p["status"]["phase"] == "Running"]
        workers = [p for p in running if pod_view(p).role in ("trainer", "rollout")]
        for pod in workers:
            self.kubelet.finish(pod, 1 if ledger.failed else 0)
        if not workers:
            word = {"phase": ledger.phase, "reason": ledger.failed, "step": ledger.done, "steps": ledger.steps}
            word |= {"version": ledger.version, "samples": ledger.samples, "lag": {"min": 0, "mean": 0.5, "max": 1}}
            self.kubelet.finish(self.pod("scheduler"), 0, message=json.dumps(word))

    def progress(self, uid: str) -> Progress | None:
        """The last answer of the job's scheduler; a new one if it serves."""
        if self._serving(uid):
            ledger = self.ledger(uid)
            views = [pod_view(pod) for pod in self.pods("rollout") if _of(pod, uid)]
            self.heard[uid] = Progress(
                at=self.clock.wall(),
                phase=ledger.phase,
                reason=ledger.failed,
                steps_done=ledger.done,
                steps_total=ledger.steps,
                version=ledger.version,
                published=ledger.version,
                samples=ledger.samples,
                seconds_per_step=2.0,
                store_failing=ledger.store_failing,
                trainer_registered=any(pod_view(p).ready for p in self.pods("trainer") if _of(p, uid)),
                replicas=tuple(
                    ReplicaProgress(f"rollout-{v.index}", ledger.version, tokens_in_flight=100 - v.index)
                    for v in views
                    if v.ready
                ),
            )
        return self.heard.get(uid)

    def set_live(self, uid: str, name: str, value: int) -> None:
        """The scheduler is told a live value."""
        ledger = self.ledger(uid)
        ledger.live[name] = value
        if name == "steps":
            ledger.steps = max(value, ledger.done)

    def _serving(self, uid: str) -> bool:
        return any(_of(p, uid) and pod_view(p).ready for p in self.pods("scheduler"))

    def _all_ready(self, uid: str) -> bool:
        for role in ("store", "scheduler", "trainer"):
            views = [pod_view(pod) for pod in self.pods(role) if _of(pod, uid)]
            if not views or not all(view.ready for view in views):
                return False
        return any(pod_view(pod).ready for pod in self.pods("rollout") if _of(pod, uid))

    # -- the operator --------------------------------------------------------------------------------------------

    def start_operator(self) -> Rehearsal:
        """A new one, which knows nothing but what it lists; the old one is gone."""
        self.operator = Rehearsal(self.api, self.progress, self.set_live, gpus=self.gpus, timings=self.timings)
        return self.operator

    def plan(self) -> Plan:
        """What the operator would do now, with all news."""
        self.operator.catch_up()
        return self.operator.plan()

    def pass_time(self, seconds: int) -> None:
        """Second by second, each with all that is to be done."""
        for _ in range(seconds):
            self.settle()
            self.clock.now += 1.0

    def settle(self, most: int = 200, *, seconds: float = 0.0, train: bool = False) -> None:
        """Let operator and kubelet go on, each round `seconds` later, until neither has anything to do."""
        for _ in range(most):
            self.operator.catch_up()
            moved = self.operator.reconcile()
            moved = self.kubelet.tick() or moved
            if train:
                self.train()
                self.end_processes()
            self.clock.now += seconds
            if not moved and not train:
                return
            if train and self.status.phase in ("Complete", "Failed") and not moved:
                return
        raise AssertionError(f"not settled after {most} rounds: {self.plan()}")


def _of(pod: Raw, uid: str) -> bool:
    return bool(pod["metadata"]["labels"].get(labels.UID) == uid)
