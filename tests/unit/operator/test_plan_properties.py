"""Any order of events, a crash of the operator between any two of its effects, stale views, lost answers, API errors.

What must hold at every write that the API server sees is checked on its history; what must hold in the end, once the
world is calm again.
"""

from typing import Any

from drumroll_operator import labels
from drumroll_operator.cluster import PODS, ApiError, Raw
from drumroll_operator.invariants import ENDS, Invariants
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.pod_view import pod_view
from drumroll_operator.rehearsal import NAME, NAMESPACE
from drumroll_operator.timings import Timings
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

_LONG = {"maxRestarts": 8, "windowSeconds": 10_000_000}


class Operating(RuleBasedStateMachine):
    """A job's life."""

    @initialize(
        trainers=st.sampled_from([1, 2, 3]), replicas=st.integers(1, 3), runs=st.sampled_from([True, True, False])
    )
    def begin(self, trainers: int, replicas: int, runs: bool) -> None:
        spec: dict[str, Any] = {
            **SPEC,
            "steps": 3,
            "trainer": {"replicas": trainers, "restartPolicy": _LONG},
            "rollout": {"replicas": replicas, "restartPolicy": _LONG},
            "scheduler": {"restartPolicy": _LONG},
            "cleanup": {"onSuccess": {"storeSeconds": 0}, "onFailure": {"storeSeconds": 10}},
        }
        self.spec = spec
        # Children are written again every ten minutes: for ever, where the world is to get quiet.
        self.lab = Laboratory(spec, timings=Timings(apply_again_s=1e9))
        self.watched = Invariants(self.lab)
        if runs:
            self.lab.settle()

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
        self.watched.check()
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
            self.watched.deleted_by_hand.add(pod["metadata"]["uid"])
            before, after, self.lab.api.before, self.lab.api.after = self.lab.api.before, self.lab.api.after, None, None
            self.lab.api.delete(PODS, NAMESPACE, pod["metadata"]["name"], grace_s=grace)
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
    def steps_are_lost(self) -> None:
        self.lab.rewind()

    @precondition(there)
    @rule()
    def training_comes_to_its_end(self) -> None:
        self.lab.train(3)
        self.lab.end_processes()
        self.lab.end_processes()

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
        if hasattr(self, "watched"):
            self.watched.check()

    @rule()
    def calm(self) -> None:
        """All faults are over: the job gets where it should be, and then nothing is written any more."""
        lab = self.lab
        lab.api.before = lab.api.after = lab.api.pod_quota = None
        self.evict_from_lost_nodes()
        self.run_until_quiet()
        quiet = lab.plan()
        assert not quiet.actions, quiet
        assert quiet.status is None
        self.watched.check()
        if self.there():
            self.check_goal()

    def evict_from_lost_nodes(self) -> None:
        """The taint manager asks for the deletion of what is on them. Nodes of stores and earlier jobs come back."""
        lab = self.lab
        uid = lab.job["metadata"]["uid"] if self.there() else ""
        for pod in [pod for pod in lab.pods() if pod["metadata"]["uid"] in lab.kubelet.lost]:
            if pod_view(pod).role == "store" or pod_view(pod).job_uid != uid:
                lab.kubelet.lost.discard(pod["metadata"]["uid"])
            else:
                self.watched.deleted_by_hand.add(pod["metadata"]["uid"])
                lab.api.delete(PODS, NAMESPACE, pod["metadata"]["name"])

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
        if status.phase in ENDS:
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
