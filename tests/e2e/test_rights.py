"""Least privilege: over the whole run, the operator used what its roles grant, and lacked nothing."""

import pytest
from kit.kube import Object
from kit.rights import Right, granted, refused, requests, used
from kit.session import Cluster

pytestmark = [pytest.mark.alone, pytest.mark.last, pytest.mark.timeout(1800)]

NOT_SEEN = {
    # Checked by admission, where owner references block deletion: never a request of its own.
    Right("drumroll.dev", "rljobs/finalizers", "update"),
    # Only where a status write meets another's change in the same moment.
    Right("drumroll.dev", "rljobs", "get"),
}


def _roles(cluster: Cluster) -> list[Object]:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    label = f"?labelSelector=app.kubernetes.io/instance={cluster.release.name}"
    roles = [*cluster.kube.items(f"{rbac}/clusterroles{label}"), *cluster.kube.items(f"{rbac}/roles{label}")]
    # Those named -view and -edit are for users.
    return [role for role in roles if "-operator" in role["metadata"]["name"]]


def _requests(cluster: Cluster) -> list[Object]:
    node = cluster.require_node()
    account = next(pod["spec"]["serviceAccountName"] for pod in cluster.release.pods)
    user = f"system:serviceaccount:{cluster.release.namespace}:{account}"
    return list(requests(node.audit_log.read_text().splitlines(), user))


@pytest.mark.cluster
def test_the_operator_lacks_no_right_and_uses_none_that_it_has_not(cluster: Cluster) -> None:
    asked = _requests(cluster)
    assert len(asked) > 50
    # Where a test has taken a right away, its refusals are what is tested.
    taken = {Right("", "pods", "create"), Right("events.k8s.io", "events", "create")}
    missing = used(entry for entry in asked if refused(entry)) - taken
    assert sorted(missing) == []
    rights = granted(rule for role in _roles(cluster) for rule in role["rules"])
    assert used(entry for entry in asked if not refused(entry)) <= rights


@pytest.mark.cluster_full
def test_the_operator_has_no_right_that_it_does_not_use(cluster: Cluster) -> None:
    rights = granted(rule for role in _roles(cluster) for rule in role["rules"])
    unused = rights - used(_requests(cluster)) - NOT_SEEN
    assert sorted(unused) == []
