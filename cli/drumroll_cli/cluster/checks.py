"""What is wrong with a cluster or a namespace, and what to do about it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

from drumroll_cli.cluster.findings import ClaimSeen, Line, NodeSeen, OperatorSeen, Right, Survey, Unseen, fail, ok, warn

OLDEST = (1, 33)
"""Kubernetes that the chart asks for."""
RIGHTS = (
    Right("create", "rljobs", "drumroll.dev"),
    Right("get", "rljobs", "drumroll.dev"),
    Right("list", "rljobs", "drumroll.dev", "drumroll status, top"),
    Right("patch", "rljobs", "drumroll.dev", "drumroll suspend, resume"),
    Right("patch", "rljobs/scale", "drumroll.dev", "drumroll scale"),
    Right("delete", "rljobs", "drumroll.dev", "drumroll cancel"),
    Right("list", "pods", needed_for="pods in drumroll status, top, logs"),
    Right("get", "pods/log", needed_for="drumroll logs"),
    Right("create", "pods/exec", needed_for="replicas' figures in drumroll top"),
    Right("list", "events", needed_for="Events in drumroll status"),
)
"""What a user of jobs does."""


def cluster_lines(seen: Survey, own_fields: frozenset[str]) -> Iterator[Line]:
    """All checks that need no job; `own_fields` are the paths of the spec that this command line knows."""
    yield _server(seen)
    yield _resource(seen, own_fields)
    yield from _operators(seen)
    yield from _namespace(seen)
    yield from _rights(seen.rights, seen.namespace)
    yield _nodes(seen)
    yield from _claims(seen)


def _server(seen: Survey) -> Line:
    text = f"{seen.version} at {seen.server} (context {seen.context})"
    if seen.numbers < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return warn("API server", text, f"Drumroll is made for Kubernetes {wanted} and newer: upgrade the cluster")
    return ok("API server", text)


def _resource(seen: Survey, own_fields: frozenset[str]) -> Line:
    served = seen.served_fields
    if isinstance(served, Unseen):
        return fail("RLJob", served.why, "install the chart: docs/install.md")
    missing, more = sorted(own_fields - served), sorted(served - own_fields)
    if missing:
        return fail(
            "RLJob",
            f"the cluster's definition lacks {_some(missing)}",
            "it is older than this command line: upgrade the chart, or use the drumroll of the chart's version",
        )
    if more:
        return warn(
            "RLJob",
            f"the cluster's definition has {_some(more)}, which this command line does not know",
            "use the drumroll of the chart's version",
        )
    return ok("RLJob", "the cluster's definition is this command line's")


def _operators(seen: Survey) -> Iterator[Line]:
    if isinstance(seen.operators, Unseen):
        if seen.jobs_seen:
            yield ok("operator", "it has looked at the jobs of this namespace (its pods are not yours to see)")
        else:
            yield warn("operator", seen.operators.why, "ask who installed Drumroll, or submit a job and look again")
        return
    if not seen.operators:
        advice = "install the chart: docs/install.md"
        yield fail("operator", "no installation was found in any namespace", advice)
        return
    for operator in seen.operators:
        yield from _operator(operator, seen.namespace)
    if len(watching := [o for o in seen.operators if _watches(o, seen.namespace)]) > 1:
        names = ", ".join(f"{operator.namespace}/{operator.name}" for operator in watching)
        advice = "uninstall one, or give each its watchNamespaces"
        yield fail("operator", f"{names} look after this namespace at once", advice)


def _watches(operator: OperatorSeen, namespace: str) -> bool:
    watched = operator.settings.get("watchNamespaces") or []
    return not watched or namespace in watched


def _operator(operator: OperatorSeen, namespace: str) -> Iterator[Line]:
    name = f"{operator.namespace}/{operator.name}"
    look = f"kubectl -n {operator.namespace} describe deployment {operator.name}"
    if not _watches(operator, namespace):
        yield warn("operator", f"{name} does not look after namespace {namespace}", "add it to watchNamespaces")
        return
    if not operator.available:
        yield fail("operator", f"{name} has no ready pod ({operator.wanted} wanted)", look)
    elif not operator.holder:
        logs = f"kubectl -n {operator.namespace} logs deployment/{operator.name}"
        yield fail("operator", f"{name} runs, but nobody holds its Lease", logs)
    elif operator.version and operator.version != (own := version("drumroll")):
        advice = "use the drumroll of the chart's version, or upgrade the chart"
        yield warn("operator", f"{name} is version {operator.version}, this command line {own}", advice)
    else:
        yield ok("operator", f"{name} runs ({operator.available}/{operator.wanted}), led by {operator.holder}")


def _namespace(seen: Survey) -> Iterator[Line]:
    labels = seen.namespace_labels
    if labels is None:
        advice = f"kubectl create namespace {seen.namespace}, or choose another one by -n"
        yield fail("namespace", f"there is no namespace {seen.namespace}", advice)
        return
    if seen.namespace_terminating:
        yield fail("namespace", f"{seen.namespace} is being deleted", "choose another one by -n")
        return
    if isinstance(labels, Unseen):
        yield ok("namespace", f"{seen.namespace} (its labels are not yours to see)")
        return
    enforced = labels.get("pod-security.kubernetes.io/enforce", "")
    profile = f"enforces Pod Security {enforced}" if enforced else "enforces no Pod Security profile"
    yield ok("namespace", f"{seen.namespace} {profile}; job pods pass the profile restricted")


def _rights(rights: Mapping[Right, bool] | Unseen, namespace: str) -> Iterator[Line]:
    if isinstance(rights, Unseen):
        yield warn("rights", rights.why, "docs/rbac.md lists what is needed")
        return
    missing = [right for right, allowed in rights.items() if not allowed]
    ask = f"ask for the role edit in namespace {namespace} (docs/rbac.md)"
    for right in missing:
        text = f"you may not {right.verb} {right.resource}"
        if right.needed_for:
            yield warn("rights", f"{text}: {right.needed_for} will not work", ask)
        else:
            yield fail("rights", text, ask)
    if not missing:
        yield ok("rights", f"you may do in namespace {namespace} what this command line does")


def _nodes(seen: Survey) -> Line:
    nodes = seen.nodes
    if isinstance(nodes, Unseen):
        return ok("nodes", f"not looked at: {nodes.why}")
    usable = [node for node in nodes if node.usable]
    total = sum(node.gpus for node in usable)
    if not usable:
        return fail("nodes", f"none of {len(nodes)} nodes is ready and open for pods", "kubectl get nodes")
    text = f"{len(usable)} of {len(nodes)} nodes usable, {total} GPUs"
    if not isinstance(seen.gpus_taken, Unseen) and total:
        text += f", {free_gpus(usable, seen.gpus_taken)} free"
    return ok("nodes", text)


def free_gpus(usable: Sequence[NodeSeen], taken: int) -> int:
    """GPUs that nobody holds."""
    return max(0, sum(node.gpus for node in usable) - taken)


def _claims(seen: Survey) -> Iterator[Line]:
    if seen.jobs:  # Then each job's own claim is looked at.
        return
    if isinstance(seen.claims, Unseen):
        yield warn("volume", seen.claims.why, "docs/model-and-data.md says which claim a job needs")
        return
    shared = [claim for claim in seen.claims if "ReadWriteMany" in claim.modes and claim.phase == "Bound"]
    if shared:
        yield ok("volume", f"claims that all pods can mount: {', '.join(claim.name for claim in shared)}")
        return
    there = ", ".join(f"{claim.name} ({'/'.join(claim.modes)}, {claim.phase})" for claim in seen.claims) or "none"
    yield warn(
        "volume",
        f"no claim of namespace {seen.namespace} is bound and ReadWriteMany; there: {there}",
        "a job keeps weights and checkpoints on one: docs/model-and-data.md",
    )


def claim_line(subject: str, name: str, claims: Sequence[ClaimSeen] | Unseen, *, num_nodes: int, writes: bool) -> Line:
    """Whether the pods of a job can all mount a claim."""
    if isinstance(claims, Unseen):
        return warn(subject, f"claim {name} was not looked at: {claims.why}", "docs/model-and-data.md")
    claim = next((claim for claim in claims if claim.name == name), None)
    if claim is None:
        there = ", ".join(claim.name for claim in claims) or "none"
        return fail(subject, f"there is no claim {name}; there: {there}", "create it: docs/model-and-data.md")
    if claim.phase == "Lost":
        return fail(subject, f"claim {name} has lost its volume", "bring the volume back, or use another claim")
    if claim.phase != "Bound":
        why = f"kubectl describe pvc {name}"
        return warn(subject, f"claim {name} is {claim.phase}, of class {claim.storage_class or 'none'}", why)
    modes = "/".join(claim.modes)
    if "ReadWriteMany" in claim.modes or ("ReadOnlyMany" in claim.modes and not writes):
        return ok(subject, f"claim {name} is bound, {modes}, {claim.capacity}")
    if claim.modes == ("ReadWriteOncePod",):
        return fail(subject, f"claim {name} is {modes}: a single pod can mount it", "use a ReadWriteMany claim")
    if claim.modes == ("ReadOnlyMany",):
        return fail(subject, f"claim {name} is {modes}: weights cannot be written", "use a ReadWriteMany claim")
    if num_nodes == 1:
        return ok(subject, f"claim {name} is bound, {modes}: enough on this cluster's one node")
    return warn(
        subject,
        f"claim {name} is {modes}: pods on other nodes than the first cannot mount it",
        "use a ReadWriteMany class (NFS, CephFS, FSx, Filestore, Azure Files), or keep all pods on one node by "
        "podTemplatePatch.spec.nodeSelector",
    )


def _some(paths: Sequence[str]) -> str:
    tops = [path for path in paths if path.rpartition(".")[0] not in paths]
    return ", ".join(tops[:4]) + (f" and {len(tops) - 4} more" if len(tops) > 4 else "")
