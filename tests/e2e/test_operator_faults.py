"""What happens to the operator and to the API server: jobs do not notice."""

import signal
from collections.abc import Callable, Iterator

import pytest
from kit.jobs import SLOWLY, ClusterJob
from kit.kube import SLOW_S, is_true, patiently
from kit.session import Cluster

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1200)]

SLOW = {"rollout": {"engine": {"replay": SLOWLY}}}
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/drumroll-operator"


def _operator(cluster: Cluster) -> str:
    """Name of the one operator pod."""
    (pod,) = [pod for pod in cluster.release.pods if "deletionTimestamp" not in pod["metadata"]]
    return str(pod["metadata"]["name"])


def _kill_operator(cluster: Cluster) -> None:
    name = _operator(cluster)
    pod = cluster.kube.get(f"/api/v1/namespaces/{cluster.release.namespace}/pods/{name}")
    assert pod is not None
    if is_true(pod, "Ready"):
        cluster.kill_container(name, pod)


@pytest.mark.cluster
def test_a_restart_of_the_operator_changes_no_pod(make_job: Callable[..., ClusterJob], cluster: Cluster) -> None:
    job = make_job(steps=40, **SLOW).apply()
    job.wait_for_step(2)
    before = job.uids()
    cluster.kube.kubectl("rollout", "restart", "deployment", "-n", cluster.release.namespace)
    cluster.kube.kubectl("rollout", "status", "deployment", "-n", cluster.release.namespace, "--timeout=200s")
    step = job.step
    job.wait(lambda: job.step > step or job.phase == "Complete", "the new operator tells of progress")
    after = job.uids()
    assert {name: after.get(name) for name in before} == before
    job.complete()


@pytest.mark.cluster_full
def test_an_operator_killed_again_and_again_loses_nothing(
    make_job: Callable[..., ClusterJob], cluster: Cluster
) -> None:
    job = make_job(steps=30, **SLOW).apply()
    for _ in range(4):
        cluster.release.wait_until_ready()
        _kill_operator(cluster)
        patiently(lambda: not _is_ready(cluster), SLOW_S, "the operator is down")
    cluster.release.wait_until_ready()
    job.complete()
    assert not job.status.get("restarts")


def _is_ready(cluster: Cluster) -> bool:
    return any(is_true(pod, "Ready") for pod in cluster.release.pods)


@pytest.mark.cluster_full
def test_a_restarted_api_server_changes_no_pod(make_job: Callable[..., ClusterJob], cluster: Cluster) -> None:
    node = cluster.require_node()
    job = make_job(steps=40, **SLOW).apply()
    job.wait_for_step(2)
    before = job.uids()
    node.restart_api_server()
    # At first it answers, but not yet for custom resources.
    patiently(lambda: cluster.kube.get(job.path) is not None, SLOW_S, "the API server answers")
    step = job.step
    job.wait(lambda: job.step > step or job.phase == "Complete", "progress is told again")
    after = job.uids()
    assert {name: after.get(name) for name in before} == before
    job.complete()


@pytest.fixture
def two_operators(cluster: Cluster) -> Iterator[None]:
    cluster.release.install(values={"operator": {"replicas": 2}})
    yield
    cluster.release.install()


@pytest.mark.cluster_full
@pytest.mark.usefixtures("two_operators")
def test_the_second_of_two_operators_takes_over(make_job: Callable[..., ClusterJob], cluster: Cluster) -> None:
    cluster.release.wait_until_ready()
    job = make_job(steps=40, **SLOW).apply()
    job.wait_for_step(2)
    before = job.uids()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.release.namespace}/leases/drumroll-operator"

    def holder() -> str:
        found = cluster.kube.get(lease)
        return str((found or {}).get("spec", {}).get("holderIdentity") or "")

    first = holder()
    pods = {pod["metadata"]["name"]: pod for pod in cluster.release.pods}
    leader = next(name for name in pods if first.startswith(name))
    cluster.kill_container(leader, pods[leader])
    patiently(lambda: holder() and holder() != first, SLOW_S, "another holds the Lease")
    step = job.step
    job.wait(lambda: job.step > step or job.phase == "Complete", "the second tells of progress")
    after = job.uids()
    assert {name: after.get(name) for name in before} == before
    job.complete()


@pytest.fixture
def role(cluster: Cluster) -> Iterator[Callable[[str, str], None]]:
    """role(resource, verb): take a right away; all are given back at the end."""
    original = cluster.kube.get(ROLE)
    assert original is not None

    def without(resource: str, verb: str) -> None:
        found = cluster.kube.get(ROLE)
        assert found is not None
        rules = [dict(rule) for rule in found["rules"]]
        for rule in rules:
            if resource in rule["resources"]:
                rule["verbs"] = [v for v in rule["verbs"] if v != verb]
        cluster.kube.patch(ROLE, {"rules": rules})

    yield without
    cluster.kube.patch(ROLE, {"rules": original["rules"]})


@pytest.mark.cluster_full
def test_a_missing_right_is_told_with_verb_and_resource(
    make_job: Callable[..., ClusterJob], cluster: Cluster, role: Callable[[str, str], None]
) -> None:
    """K8."""
    original = cluster.kube.get(ROLE)
    assert original is not None
    role("pods", "create")
    job = make_job(steps=3).apply()
    job.wait(lambda: job.condition("Admitted").get("reason") == "MissingRights", "Admitted=False for the right")
    message = job.condition("Admitted")["message"]
    assert "create" in message
    assert "pods" in message
    cluster.kube.patch(ROLE, {"rules": original["rules"]})
    role("events", "create")
    job.complete()
    assert "events" in cluster.release.log(400)


@pytest.mark.cluster_full
def test_the_operator_ends_in_order_when_it_is_asked_to(cluster: Cluster) -> None:
    node = cluster.require_node()
    name = _operator(cluster)
    pod = cluster.kube.get(f"/api/v1/namespaces/{cluster.release.namespace}/pods/{name}")
    assert pod is not None
    before = pod["status"]["containerStatuses"][0]["restartCount"]
    node.kill_container(pod["status"]["containerStatuses"][0]["containerID"], signal.SIGTERM)

    def ended() -> int | None:
        found = cluster.kube.get(f"/api/v1/namespaces/{cluster.release.namespace}/pods/{name}")
        status = (found or {}).get("status", {}).get("containerStatuses", [{}])[0]
        if status.get("restartCount", 0) <= before:
            return None
        return int(status["lastState"]["terminated"]["exitCode"]) + 1

    assert patiently(ended, SLOW_S, "the operator has ended") == 1
    cluster.release.wait_until_ready()
