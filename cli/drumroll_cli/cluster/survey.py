"""Looks at a cluster for `drumroll doctor`: many small reads, any of which may be refused. Reads no Secret."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import yaml

from drumroll.api.crd import GROUP, VERSION, custom_resource_definition
from drumroll.api.spec import RLJob
from drumroll_cli.cluster import sightings
from drumroll_cli.cluster.answers import ClusterRefusal
from drumroll_cli.cluster.checks import RIGHTS
from drumroll_cli.cluster.connection import Cluster
from drumroll_cli.cluster.findings import OperatorSeen, Right, Survey, Unseen
from drumroll_cli.cluster.job_checks import config_maps_of, secrets_of
from drumroll_cli.cluster.paths import core_path, jobs_path
from drumroll_cli.cluster.submission import body_of

T = TypeVar("T")
Json = dict[str, Any]


async def survey(cluster: Cluster, jobs: list[RLJob], now: float) -> Survey:
    """Everything that the checks need."""
    here = cluster.namespace
    nodes, pods, there, operators, served, rights = await asyncio.gather(
        _seen(lambda: cluster.list(core_path("nodes"))),
        _seen(lambda: cluster.list(core_path("pods"), fields="status.phase!=Succeeded,status.phase!=Failed")),
        _seen(lambda: cluster.list(jobs_path(here))),
        _seen(lambda: _operators(cluster, now)),
        _seen(lambda: _served(cluster)),
        _seen(lambda: _rights(cluster)),
    )
    space, claims, quotas, ranges = await asyncio.gather(
        _seen(lambda: cluster.get(core_path("namespaces") + f"/{here}")),
        _seen(lambda: cluster.list(core_path("persistentvolumeclaims", here))),
        _seen(lambda: cluster.list(core_path("resourcequotas", here))),
        _seen(lambda: cluster.list(core_path("limitranges", here))),
    )
    pull = (
        [] if isinstance(operators, Unseen) else [s for o in operators for s in o.settings.get("imagePullSecrets", [])]
    )
    secrets = {name for job in jobs for name in secrets_of(job, pull)}
    maps = {name for job in jobs for name in config_maps_of(job)}
    return Survey(
        context=cluster.context,
        server=cluster.server,
        namespace=here,
        version=str((await cluster.get("/version")).get("gitVersion", "")),
        served_fields=served,
        operators=operators,
        jobs_seen=sightings.jobs_seen(there),
        namespace_labels=sightings.labels_of(space),
        namespace_terminating=sightings.is_terminating(space),
        rights=rights,
        nodes=nodes if isinstance(nodes, Unseen) else [sightings.node(item) for item in nodes],
        gpus_taken=pods if isinstance(pods, Unseen) else sum(map(sightings.gpus_of, pods)),
        claims=claims if isinstance(claims, Unseen) else [sightings.claim(item) for item in claims],
        quotas=quotas,
        limit_ranges=not isinstance(ranges, Unseen) and bool(ranges),
        secrets=await _present(cluster, "secrets", secrets),
        config_maps=await _present(cluster, "configmaps", maps),
        refusals=await _refusals(cluster, jobs),
        jobs=tuple(jobs),
    )


def own_fields() -> frozenset[str]:
    """Paths of the spec that this command line knows."""
    (version,) = custom_resource_definition()["spec"]["versions"]
    return sightings.field_paths(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")


async def _seen(look: Callable[[], Awaitable[T]]) -> T | Unseen:
    """What is found, or why one may not look."""
    try:
        return await look()
    except ClusterRefusal as error:
        return Unseen(str(error).partition(": choose another namespace")[0])


async def _served(cluster: Cluster) -> frozenset[str]:
    """Paths of the spec of the served RLJob; everyone may read this."""
    document = await cluster.find(f"/openapi/v3/apis/{GROUP}/{VERSION}")
    for name, schema in ((document or {}).get("components") or {}).get("schemas", {}).items():
        if name.endswith(".RLJob"):
            return sightings.field_paths(schema["properties"]["spec"], "spec")
    raise ClusterRefusal("the cluster does not know RLJobs, or only since a moment ago", code=404)


async def _rights(cluster: Cluster) -> Mapping[Right, bool]:
    answers = await asyncio.gather(*(_allowed(cluster, right) for right in RIGHTS))
    return dict(zip(RIGHTS, answers, strict=True))


async def _allowed(cluster: Cluster, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"namespace": cluster.namespace, "verb": right.verb, "group": right.group, "resource": resource}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes | ({"subresource": subresource} if subresource else {})},
    }
    answer = await cluster.review("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool((answer.get("status") or {}).get("allowed"))


async def _operators(cluster: Cluster, now: float) -> list[OperatorSeen]:
    found = await cluster.list("/apis/apps/v1/deployments", labels="app.kubernetes.io/part-of=drumroll")
    return [await _operator(cluster, deployment, now) for deployment in found if sightings.is_operator(deployment)]


async def _operator(cluster: Cluster, deployment: Json, now: float) -> OperatorSeen:
    name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    lease = await _seen(lambda: cluster.find(path))
    settings = await _seen(lambda: cluster.find(core_path("configmaps", namespace, name)))
    text = "" if settings is None or isinstance(settings, Unseen) else settings.get("data", {}).get("settings.yaml", "")
    read = yaml.safe_load(text) if text else {}
    holder = "(its Lease is not yours to see)" if isinstance(lease, Unseen) else sightings.holder(lease, now)
    return sightings.operator(deployment, holder, read if isinstance(read, dict) else {})


async def _present(cluster: Cluster, kind: str, names: Iterable[str]) -> dict[str, bool | Unseen]:
    """Whether objects are there; only their metadata is asked for."""
    return {name: await _seen(lambda name=name: _is_there(cluster, kind, name)) for name in sorted(names)}  # type: ignore[misc]


async def _is_there(cluster: Cluster, kind: str, name: str) -> bool:
    return await cluster.exists(core_path(kind, cluster.namespace, name))


async def _refusals(cluster: Cluster, jobs: list[RLJob]) -> dict[str, str]:
    """What the API server says to a dry run of each job."""
    found = {}
    for job in jobs:
        try:
            await cluster.create(jobs_path(cluster.namespace), body_of(job, cluster.namespace), dry_run=True)
            found[job.metadata.name] = ""
        except ClusterRefusal as error:
            found[job.metadata.name] = "" if error.code == 409 else str(error)
    return found
