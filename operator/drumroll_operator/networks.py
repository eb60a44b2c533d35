"""NetworkPolicies of a job: its pods speak to each other as far as their parts need it, to the DNS, and to nobody else.

Policies add up: a job whose own code must reach a tracker or a bucket gets that by a policy of the user's that selects
`drumroll.dev/job`.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any

from drumroll.endpoint import Endpoint
from drumroll.job import ResolvedJob
from drumroll_operator.labels import metadata, selector
from drumroll_operator.manifests import Manifest
from drumroll_operator.resolve import SCHEDULER_PORT, STORE_PORT
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import WORKERS, Role

DNS_PORTS = (53, 5353)
"""Of the Service, and of OpenShift's pods behind it."""

Rule = dict[str, Any]


def network_policies(job: ResolvedJob, settings: OperatorSettings) -> list[Manifest]:
    """Nothing is allowed to any pod, then what each role needs."""
    policies = [
        _policy(job, "deny", {"podSelector": selector(job), "policyTypes": ["Ingress", "Egress"]}),
        _allow(job, "scheduler", ingress=_to_scheduler(job, settings), egress=[*_dns(), *_store(job)]),
        _allow(job, "rollout", ingress=[], egress=[*_dns(), *_store(job), *_scheduler(job)]),
        _allow(job, "trainer", ingress=_ranks(job, "from"), egress=_trainer_egress(job)),
    ]
    if not job.spec.stream.url:
        callers = [{"podSelector": selector(job, *WORKERS)}]
        policies.append(_allow(job, "store", ingress=[{"from": callers, "ports": _ports(STORE_PORT)}], egress=[]))
    return policies


def _to_scheduler(job: ResolvedJob, settings: OperatorSettings) -> list[Rule]:
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.operator_namespace}},
        "podSelector": {"matchLabels": dict(sorted(settings.operator_labels.items()))},
    }
    workers = {"podSelector": selector(job, "rollout", "trainer")}
    return [{"from": [workers, operator], "ports": _ports(SCHEDULER_PORT)}]


def _trainer_egress(job: ResolvedJob) -> list[Rule]:
    return [*_dns(), *_store(job), *_scheduler(job), *_ranks(job, "to")]


def _ranks(job: ResolvedJob, direction: str) -> list[Rule]:
    """Ranks of several pods choose ports of their own to send gradients."""
    return [{direction: [{"podSelector": selector(job, "trainer")}]}] if job.spec.trainer.replicas > 1 else []


def _scheduler(job: ResolvedJob) -> list[Rule]:
    return [{"to": [{"podSelector": selector(job, "scheduler")}], "ports": _ports(SCHEDULER_PORT)}]


def _store(job: ResolvedJob) -> list[Rule]:
    if not job.spec.stream.url:
        return [{"to": [{"podSelector": selector(job, "store")}], "ports": _ports(STORE_PORT)}]
    endpoint = Endpoint.parse(job.spec.stream.url)
    try:
        address = ipaddress.ip_address(endpoint.host)
    except ValueError:
        # A policy knows no names: the port is all that can be said.
        return [{"ports": _ports(endpoint.port)}]
    return [{"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], "ports": _ports(endpoint.port)}]


def _dns() -> list[Rule]:
    """To anybody: a node's own DNS cache is no pod that could be selected."""
    return [{"ports": [*_ports(*DNS_PORTS, protocol="UDP"), *_ports(*DNS_PORTS)]}]


def _ports(*ports: int, protocol: str = "TCP") -> list[dict[str, Any]]:
    return [{"port": port, "protocol": protocol} for port in ports]


def _allow(job: ResolvedJob, role: Role, *, ingress: Sequence[Rule], egress: Sequence[Rule]) -> Manifest:
    spec: dict[str, Any] = {"podSelector": selector(job, role), "policyTypes": ["Ingress", "Egress"]}
    spec |= {key: list(rules) for key, rules in (("ingress", ingress), ("egress", egress)) if rules}
    return _policy(job, role, spec)


def _policy(job: ResolvedJob, name: str, spec: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, f"{job.name}-{name}", name),
        "spec": spec,
    }
