"""What `helm test` says of an installation in which an operator leads."""

import pytest
from kit.session import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_helm_test_passes_and_says_what_it_checked(cluster: Cluster) -> None:
    release = cluster.release
    try:
        said = release.helm("test", release.name, "--namespace", release.namespace, "--logs", "--timeout", "3m")
    finally:
        # It stays for its log, and is no operator.
        cluster.kube.kubectl("-n", release.namespace, "delete", "pod", f"{release.name}-test", "--ignore-not-found")
    for check in ("an_rljob_is_accepted", "the_lease_is_held", "metrics_are_served"):
        assert f"ok {check}" in said
