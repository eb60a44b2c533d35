"""The node under a job: cordoned and drained, and with GPUs that are only said to be there."""

from collections.abc import Callable, Iterator

import pytest
from kit.jobs import SLOWLY, SMALL, ClusterJob, in_background
from kit.session import Cluster

pytestmark = [pytest.mark.cluster_full, pytest.mark.alone, pytest.mark.timeout(1200)]
GPU = "nvidia.com/gpu"


@pytest.fixture
def node_name(cluster: Cluster) -> Iterator[str]:
    name = cluster.kube.items("/api/v1/nodes")[0]["metadata"]["name"]
    yield name
    cluster.kube.kubectl("uncordon", name)


def test_a_drained_node_gets_its_job_back(
    make_job: Callable[..., ClusterJob], cluster: Cluster, node_name: str
) -> None:
    # One replica: the budget of several rightly keeps the second where it is, as long as the first has no other node.
    job = make_job(steps=16, rollout={"engine": {"replay": SLOWLY}}).apply()
    job.wait_for_step(2)
    before = set(job.uids().values())
    kubectl = [cluster.kube.kubectl_path, "drain", node_name, "--delete-emptydir-data", "--force", "--timeout=300s"]
    drain = in_background([*kubectl, "--pod-selector=drumroll.dev/job=job"], dict(cluster.kube.environment))
    try:
        job.wait(lambda: not before & set(job.uids().values()), "all pods have left")
        assert drain.wait(300) == 0, drain.communicate()[0]
    finally:
        drain.kill()
        drain.communicate()
    cluster.kube.kubectl("uncordon", node_name)
    job.complete()
    assert not job.status.get("restarts")


@pytest.fixture
def gpus(cluster: Cluster, node_name: str) -> Iterator[None]:
    """Eight GPUs that the node is only said to have."""
    path = f"/api/v1/nodes/{node_name}/status"
    places = ["/status/capacity/nvidia.com~1gpu", "/status/allocatable/nvidia.com~1gpu"]
    cluster.kube.patch(path, [{"op": "add", "path": place, "value": "8"} for place in places])
    yield
    cluster.kube.patch(path, [{"op": "remove", "path": place} for place in places])


@pytest.mark.usefixtures("gpus")
def test_gpus_are_counted_by_role_and_given_back(make_job: Callable[..., ClusterJob]) -> None:
    resources = {"requests": SMALL["requests"], "limits": {GPU: "2"}}
    replay = {"replay": SLOWLY}
    rollout = {"replicas": 2, "tensorParallelSize": 2, "resources": resources, "engine": replay}
    job = make_job(steps=6, rollout=rollout)
    job.spec["trainer"]["resources"] = {"requests": SMALL["requests"], "limits": {GPU: "1"}}
    job.apply()
    job.wait_for_step(1)
    assert job.status["gpus"] == 5
    (row,) = job.table()
    assert row["GPUS"] == "5"
    for pod in job.pods():
        role = pod["metadata"]["labels"]["drumroll.dev/role"]
        limit = pod["spec"]["containers"][0].get("resources", {}).get("limits", {}).get(GPU)
        assert limit == {"rollout": "2", "trainer": "1"}.get(role)
        tolerated = [t for t in pod["spec"]["tolerations"] if t.get("key") == GPU]
        assert bool(tolerated) == (role in ("rollout", "trainer"))
    job.complete()
    assert not job.status.get("gpus")
