"""Paths of the API that the verbs use. Pure."""

from drumroll.api.crd import GROUP, PLURAL, VERSION


def jobs_path(namespace: str | None) -> str:
    """All RLJobs of a namespace; None: of all namespaces."""
    inner = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{inner}/{PLURAL}"


def job_path(namespace: str, name: str, subresource: str = "") -> str:
    """One RLJob."""
    return f"{jobs_path(namespace)}/{name}" + (f"/{subresource}" if subresource else "")


def core_path(kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """Objects of the core group, such as pods; cluster-wide where there is no namespace."""
    parts = ["/api/v1", f"namespaces/{namespace}" if namespace else "", kind, name, subresource]
    return "/".join(part for part in parts if part)


def pods_of(job: str) -> str:
    """Label selector of a job's pods."""
    return f"drumroll.dev/job={job}"
