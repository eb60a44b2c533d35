"""Who may speak to whom, worked out from the NetworkPolicies as a network would."""

from typing import Any

import pytest
from drumroll_operator.networks import network_policies
from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import ROLES

OPERATOR = {"app.kubernetes.io/name": "drumroll", "app.kubernetes.io/component": "operator"}
PORTS = {"scheduler": 50051, "store": 6379, "trainer": 34567}


def chosen(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a LabelSelector takes the labels."""
    matches = selector.get("matchLabels", {}).items() <= labels.items()
    return matches and all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []))


class Network:
    """The job's policies, and its pods' labels."""

    def __init__(self, job: Any, settings: OperatorSettings) -> None:
        resolved = resolve(job, settings)
        self.policies = [policy["spec"] for policy in network_policies(resolved, settings)]
        self.labels: dict[str, dict[str, str]] = {
            role: pod(resolved, settings, role)["metadata"]["labels"] for role in ROLES
        }

    def _side(self, side: str, labels: dict[str, str], peer: dict[str, str], port: int, namespace: str | None) -> bool:
        """Whether one side of a connection is allowed."""
        rules = [
            rule
            for policy in self.policies
            if chosen(policy["podSelector"], labels)
            for rule in policy.get(side, [])
            if "ports" not in rule or port in [item["port"] for item in rule["ports"]]
        ]
        key = "from" if side == "ingress" else "to"
        return any(key not in rule or any(_is(p, peer, namespace) for p in rule[key]) for rule in rules)

    def allows(self, source: str, target: str, port: int | None = None) -> bool:
        port = port or PORTS.get(target, 8081)
        one, other = self.labels[source], self.labels[target]
        return self._side("egress", one, other, port, None) and self._side("ingress", other, one, port, None)

    def lets_in(self, target: str, labels: dict[str, str], namespace: str, port: int) -> bool:
        return self._side("ingress", self.labels[target], labels, port, namespace)


def _is(peer: dict[str, Any], labels: dict[str, str], namespace: str | None) -> bool:
    """`namespace` None: the job's own."""
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        at = {"kubernetes.io/metadata.name": namespace or "team"}
        return chosen(peer["namespaceSelector"], at) and chosen(peer["podSelector"], labels)
    return namespace is None and chosen(peer["podSelector"], labels)


def test_only_the_flows_that_a_job_needs_exist(make_job: Any, settings: OperatorSettings) -> None:
    network = Network(make_job(), settings)
    flows = {(source, target) for source in ROLES for target in ROLES if network.allows(source, target)}
    assert flows == {
        ("scheduler", "store"),
        ("rollout", "store"),
        ("trainer", "store"),
        ("rollout", "scheduler"),
        ("trainer", "scheduler"),
    }
    assert not network.allows("rollout", "store", 22)


def test_trainer_pods_of_one_set_speak_freely(make_job: Any, settings: OperatorSettings) -> None:
    assert Network(make_job(trainer={"replicas": 2}), settings).allows("trainer", "trainer")
    assert not Network(make_job(), settings).allows("trainer", "trainer")


def test_the_operator_alone_comes_from_outside_and_only_to_the_scheduler(
    make_job: Any, settings: OperatorSettings
) -> None:
    network = Network(make_job(), settings)
    assert network.lets_in("scheduler", OPERATOR, "drumroll", 50051)
    assert not network.lets_in("scheduler", OPERATOR, "elsewhere", 50051)
    assert not network.lets_in("scheduler", {"app.kubernetes.io/name": "other"}, "drumroll", 50051)
    for role in ("store", "rollout", "trainer"):
        assert not any(network.lets_in(role, OPERATOR, "drumroll", port) for port in (50051, 6379, 8081))


def test_a_pod_of_another_job_of_the_same_name_is_a_stranger(make_job: Any, settings: OperatorSettings) -> None:
    network = Network(make_job(), settings)
    old = network.labels["rollout"] | {"drumroll.dev/uid": "another"}
    assert not network._side("ingress", network.labels["scheduler"], old, 50051, None)


def test_all_but_the_store_may_ask_the_dns(make_job: Any, settings: OperatorSettings) -> None:
    network = Network(make_job(), settings)
    asks = {role: network._side("egress", network.labels[role], {}, 53, "kube-system") for role in ROLES}
    assert asks == {"store": False, "scheduler": True, "rollout": True, "trainer": True}


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://10.0.0.7:6380", {"to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}]}),
        ("redis://redis.test:6380", {}),
    ],
)
def test_a_store_of_ones_own_is_reached_at_its_port(
    url: str, wanted: dict[str, Any], make_job: Any, settings: OperatorSettings
) -> None:
    network = Network(make_job(stream={"url": url, "secretRef": "redis"}), settings)
    egress = [p["egress"] for p in network.policies if "egress" in p]
    assert len(egress) == 3
    assert all({**wanted, "ports": [{"port": 6380, "protocol": "TCP"}]} in rules for rules in egress)
