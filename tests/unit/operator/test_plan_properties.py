"""Any order of events, a crash of the operator between any two of its effects, stale views, lost answers, API errors.

What must hold at every write that the API server sees is checked on its history; what must hold in the end, once the
world is calm again.
"""

from typing import Any

from drumroll_operator import labels
from drumroll_operator.cluster import RLJOBS, ApiError, Raw
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.pod_view import pod_view
from drumroll_operator.rehearsal import NAME, NAMESPACE
from drumroll_operator.timings import Timings
from drumroll_operator.verdicts import Cause, verdict
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

_LONG = {"maxRestarts": 8, "windowSeconds": 10_000_000}
_ENDS = ("Complete", "Failed")


class Auditor:
    """Reads the API server's history and objects to what must never be."""

    def __init__(self, lab: Laboratory) -> None:
        self.lab = lab
        self.read = 0
        self.jobs: dict[str, Raw] = {}
        self.pods: dict[str, Raw] = {}
        self.ended: set[str] = set()
        self.charged: set[str] = set()
        self.deleted_by_hand: set[str] = set()

    def audit(self) -> None:
        """Go on to the newest change."""
        for happening in self.lab.api.history[self.read :]:
            raw = happening.object
            if raw["kind"] == "RLJob":
                self._job(happening.type, raw)
            elif raw["kind"] == "Pod":
                self._pod(happening.type, raw)
        self.read = len(self.lab.api.history)

    def _job(self, type_: str, raw: Raw) -> None:
        uid = raw["metadata"]["uid"]
        if type_ == "DELETED":
            self.jobs.pop(uid, None)
            return
        before = self.jobs.get(uid, {}).get("status") or {}
        now = raw.get("status") or {}
        self.jobs[uid] = raw
        for figure in ("step", "version", "samples", "suspendedSeconds"):
            assert now.get(figure, 0) >= before.get(figure, 0), f"{figure} went back"
        assert now.get("trainer", {}).get("setNumber", 0) >= before.get("trainer", {}).get("setNumber", 0)
        if before.get("phase") in _ENDS:
            assert now["phase"] == before["phase"], "an end was taken back"
            assert now["endTime"] == before["endTime"]
        self._conditions(before, now)
        self._charges(before, now)

    def _conditions(self, before: Raw, now: Raw) -> None:
        old = {c["type"]: c for c in before.get("conditions", [])}
        new = {c["type"]: c for c in now.get("conditions", [])}
        for type_, condition in new.items():
            if type_ in old and old[type_]["status"] == condition["status"]:
                assert old[type_]["lastTransitionTime"] == condition["lastTransitionTime"]
        if now.get("phase") in _ENDS:
            assert [new[end]["status"] for end in _ENDS].count("True") == 1

    def _charges(self, before: Raw, now: Raw) -> None:
        old = {entry["role"]: entry for entry in before.get("restarts", [])}
        for entry in now.get("restarts", []):
            known = old.get(entry["role"], {"count": 0, "chargedUids": []})
            new = set(entry["chargedUids"]) - set(known["chargedUids"])
            assert entry["count"] - known["count"] == len(new), "charges are counted by uid"
            assert not new & self.charged, "charged twice"
            assert new <= self.ended, "charged before its end"
            self.charged |= new

    def _pod(self, type_: str, raw: Raw) -> None:
        uid, view = raw["metadata"]["uid"], pod_view(raw)
        job = self.jobs.get(view.job_uid)
        if view.ended:
            self.ended.add(uid)
        if type_ == "ADDED":
            # One that was made before the job's deletion was heard of is garbage, which the cluster collects.
            assert job is None or (job.get("status") or {}).get("phase") not in _ENDS, "made after the end"
            if view.role == "trainer":
                self._one_set(view.job_uid, view.set_number)
        if type_ == "DELETED":
            self._paid(raw, job)
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = raw

    def _one_set(self, job_uid: str, number: int) -> None:
        for other in map(pod_view, self.pods.values()):
            if other.role == "trainer" and other.job_uid == job_uid:
                assert other.set_number == number or other.ended, "two trainer sets"

    def _paid(self, raw: Raw, job: Raw | None) -> None:
        """A failure of a single part or a replica is charged before its object goes, while the job runs."""
        view = pod_view(raw)
        if job is None or raw["metadata"]["uid"] in self.deleted_by_hand or not view.ended or view.role == "trainer":
            return
        status = job.get("status") or {}
        over = self.lab.ledger(view.job_uid).phase != "Running"
        if status.get("phase") in (*_ENDS, "Suspended") or job["spec"].get("suspend") or over or view.deleting:
            return
        if verdict(view).cause is Cause.CHARGED:
            assert view.uid in self.charged, f"{view.name} went without being charged"


class Operating(RuleBasedStateMachine):
    """A job's life."""

    @initialize(trainers=st.sampled_from([1, 1, 2, 3]), replicas=st.integers(1, 3))
    def begin(self, trainers: int, replicas: int) -> None:
        spec: dict[str, Any] = {
            **SPEC,
            "steps": 6,
            "trainer": {"replicas": trainers, "restartPolicy": _LONG},
            "rollout": {"replicas": replicas, "restartPolicy": _LONG},
            "scheduler": {"restartPolicy": _LONG},
            "cleanup": {"onSuccess": {"storeSeconds": 0}, "onFailure": {"storeSeconds": 10}},
        }
        self.spec = spec
        # Children are written again every ten minutes: for ever, where the world is to get quiet.
        self.lab = Laboratory(spec, timings=Timings(apply_again_s=1e9))
        self.auditor = Auditor(self.lab)

    def there(self) -> bool:
        """The job exists."""
        return ("RLJob", NAMESPACE, NAME) in self.lab.api.objects

    def some_pod(self, number: int, *, running: bool = True) -> Raw | None:
        """One of the pods, if there is one."""
        pods = [p for p in self.lab.pods() if not running or p["status"]["phase"] == "Running"]
        pods = [p for p in pods if p["metadata"]["uid"] not in self.lab.kubelet.lost]
        return pods[number % len(pods)] if pods else None

    # -- the operator ----------------------------------------------------------------------------------------------

    @rule(news=st.integers(0, 6))
    def hears(self, news: int) -> None:
        self.lab.operator.catch_up(news)

    @rule(effects=st.integers(0, 12))
    def reconciles_and_crashes(self, effects: int) -> None:
        for done, _ in enumerate(self.lab.operator.effects()):
            if done == effects:
                break
        self.auditor.audit()
        self.lab.start_operator()

    @rule()
    def reconciles(self) -> None:
        self.lab.operator.reconcile()

    @rule()
    def hears_all_and_reconciles(self) -> None:
        self.lab.operator.catch_up()
        self.lab.operator.reconcile()

    @rule(calls=st.integers(0, 4), code=st.sampled_from([0, 403, 409, 429, 500]), lost=st.booleans())
    def the_api_fails(self, calls: int, code: int, lost: bool) -> None:
        left = [calls]

        def fail(verb: str, resource: str, name: str) -> None:
            left[0] -= 1
            if left[0] < 0 and verb in ("create", "patch", "delete"):
                self.lab.api.before = self.lab.api.after = None
                raise ApiError("exceeded quota: x" if code == 403 else "no", verb=verb, resource=resource, code=code)

        self.lab.api.before, self.lab.api.after = (None, fail) if lost else (fail, None)

    # -- the cluster -----------------------------------------------------------------------------------------------

    @rule()
    def kubelets_work(self) -> None:
        self.lab.kubelet.tick()

    @rule(number=st.integers(0, 9), code=st.sampled_from([1, 1, 137, 75, 0]))
    def a_process_ends(self, number: int, code: int) -> None:
        pod = self.some_pod(number)
        if pod is not None:
            self.lab.kubelet.finish(pod, code, reason="OOMKilled" if code == 137 else "")

    @precondition(lambda self: self.lab.clock.now % 7 < 1)
    @rule(number=st.integers(0, 9))
    def a_user_was_wrong(self, number: int) -> None:
        pod = self.some_pod(number)
        if pod is not None:
            self.lab.kubelet.finish(pod, 2, message="reward.py: no such function")

    @rule(number=st.integers(0, 9))
    def a_pod_is_evicted(self, number: int) -> None:
        pod = self.some_pod(number)
        if pod is not None:
            self.lab.kubelet.evict(pod)

    @rule(number=st.integers(0, 9), grace=st.sampled_from([None, 0]))
    def a_pod_is_deleted(self, number: int, grace: int | None) -> None:
        pod = self.some_pod(number, running=False)
        if pod is not None:
            self.auditor.deleted_by_hand.add(pod["metadata"]["uid"])
            kind = RLJOBS.__class__("Pod", "v1", "pods")
            before, after, self.lab.api.before, self.lab.api.after = self.lab.api.before, self.lab.api.after, None, None
            self.lab.api.delete(kind, NAMESPACE, pod["metadata"]["name"], grace_s=grace)
            self.lab.api.before, self.lab.api.after = before, after

    @rule(number=st.integers(0, 9))
    def a_node_is_lost(self, number: int) -> None:
        pod = self.some_pod(number)
        if pod is not None:
            self.lab.kubelet.lost.add(pod["metadata"]["uid"])

    @rule(quota=st.sampled_from([None, 2, 4, 6]))
    def the_quota_changes(self, quota: int | None) -> None:
        self.lab.api.pod_quota = quota

    @rule(seconds=st.sampled_from([1.0, 3.0, 7.0, 31.0, 100.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.lab.clock.now += seconds

    # -- the job ---------------------------------------------------------------------------------------------------

    @precondition(there)
    @rule(steps=st.integers(1, 2))
    def training_goes_on(self, steps: int) -> None:
        self.lab.train(steps)

    @precondition(there)
    @rule()
    def processes_end(self) -> None:
        self.lab.end_processes()

    @precondition(there)
    @rule(suspend=st.booleans())
    def suspended_or_resumed(self, suspend: bool) -> None:
        self.lab.edit(suspend=suspend)

    @precondition(there)
    @rule(replicas=st.integers(1, 5))
    def scaled(self, replicas: int) -> None:
        self.lab.edit(rollout__replicas=replicas)

    @precondition(lambda self: self.there() and self.lab.clock.now % 5 < 1)
    @rule()
    def the_job_is_deleted(self) -> None:
        self.lab.api.remove(self.lab.job)

    @precondition(lambda self: not self.there())
    @rule()
    def a_job_of_the_same_name_comes(self) -> None:
        before, after, self.lab.api.before, self.lab.api.after = self.lab.api.before, self.lab.api.after, None, None
        self.lab.submit(self.spec)
        self.lab.api.before, self.lab.api.after = before, after

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def nothing_forbidden_was_written(self) -> None:
        if hasattr(self, "auditor"):
            self.auditor.audit()

    @rule()
    def calm(self) -> None:
        """All faults are over: the job gets where it should be, and then nothing is written any more."""
        lab = self.lab
        lab.api.before = lab.api.after = lab.api.pod_quota = None
        lab.kubelet.lost.clear()
        self.run_until_quiet()
        quiet = lab.plan()
        assert not quiet.actions, quiet
        assert quiet.status is None
        self.auditor.audit()
        if self.there():
            self.check_goal()

    def run_until_quiet(self) -> None:
        lab = self.lab
        for _ in range(400):
            lab.operator.catch_up()
            before = lab.api.version
            moved = lab.operator.reconcile()
            lab.kubelet.tick()
            if self.there():
                lab.end_processes()
            if moved or lab.api.version != before:
                continue
            wait = lab.plan().requeue_s
            if wait is None or wait > 400.0:
                return
            lab.clock.now += wait
        raise AssertionError(f"never quiet: {lab.plan()}")

    def check_goal(self) -> None:
        lab = self.lab
        uid, status, spec = lab.job["metadata"]["uid"], lab.status, lab.job["spec"]
        views = [pod_view(pod) for pod in lab.pods()]
        assert all(view.job_uid == uid for view in views), "pods of an earlier job are left"
        alive = [view for view in views if not view.ended]
        if status.phase in _ENDS:
            assert not [view for view in alive if view.role != "store"], "pods run after the end"
            return
        if spec.get("suspend"):
            assert lab.said("Suspended") == ("True", "Suspended")
            assert not [view for view in views if view.role != "store"]
            return
        count = {
            role: sum(v.role == role and v.ready for v in alive)
            for role in ("store", "scheduler", "trainer", "rollout")
        }
        over = lab.ledger(uid).phase != "Running"
        assert over or count == {
            "store": 1,
            "scheduler": 1,
            "trainer": spec["trainer"]["replicas"],
            "rollout": spec["rollout"]["replicas"],
        }, (count, lab.plan(), status)
        assert over or lab.said("Ready")[0] == "True", lab.condition("Ready")
        assert lab.names() == sorted(lab.names())
        assert all(pod["metadata"]["labels"][labels.JOB] == NAME for pod in lab.pods())

    def teardown(self) -> None:
        if hasattr(self, "lab"):
            self.calm()


Operating.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_order_of_events = Operating.TestCase
