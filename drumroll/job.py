"""job.json: the resolved job that every process of it reads.

The operator or the local runner writes it once per revision; it holds no secret, only the paths of secret files.
"""

import hashlib
import json
from pathlib import Path

from pydantic import Field
from pydantic.main import IncEx

from drumroll.api.base import ApiModel
from drumroll.api.spec import RLJobSpec
from drumroll.errors import JobError

_OF_PODS: IncEx = {"env", "image", "restart_policy", "pod_template_patch"}
_NOT_IN_FILE: IncEx = {
    "spec": {
        "env": True,
        "rollout": _OF_PODS,
        "trainer": _OF_PODS,
        "scheduler": _OF_PODS,
        "stream": {"embedded": {"image", "resources", "pod_template_patch"}},
        "suspend": True,
        "volumes": True,
        "image_pull_secrets": True,
        "security_context": True,
        "pending_deadline_seconds": True,
        "active_deadline_seconds": True,
        "stall_deadline_seconds": True,
        "cleanup": True,
    }
}
"""What only the operator acts on: changing it makes no new revision of the file."""


class Secrets(ApiModel):
    """Paths of files; each process can read only its own role's."""

    token_files: dict[str, str] = Field(default_factory=dict)
    """Role (scheduler, rollout, trainer, viewer, operator) to the file with its token. The scheduler reads all."""
    store_password_files: dict[str, str] = Field(default_factory=dict)
    """Role to the file with its store user's password; the user's name is the role's."""
    store_ca_file: str | None = None
    """PEM file with the authorities that a rediss:// store's certificate is checked against; None: the system's."""
    tls_ca_file: str | None = None
    """PEM file with the authority of the job's own servers; set: calls to the scheduler are encrypted."""
    tls_cert_file: str | None = None
    """PEM file with the certificate of the job's own servers; read by the scheduler and the embedded store alone."""
    tls_key_file: str | None = None
    """PEM file with its private key."""


class Endpoints(ApiModel):
    """The two known addresses."""

    scheduler: str
    """host:port of the scheduler's gRPC service."""
    store: str
    """redis://host:port or rediss://host:port, without credentials."""


class Layout(ApiModel):
    """Where files are, as this job's processes see them."""

    job_dir: str
    """<volume>/<namespace>/<job>-<uid>: weights/, checkpoints/, journal/, samples/."""
    data_dir: str
    """The prepared data set: train.arrow, eval.arrow, dataset.json."""
    model_dir: str
    """The starting model."""
    source_dir: str
    """Where the job file was; reward modules are found here."""

    @property
    def weights_dir(self) -> Path:
        return Path(self.job_dir) / "weights"

    @property
    def checkpoints_dir(self) -> Path:
        return Path(self.job_dir) / "checkpoints"

    @property
    def journal_dir(self) -> Path:
        return Path(self.job_dir) / "journal"

    @property
    def samples_dir(self) -> Path:
        return Path(self.job_dir) / "samples"


class ResolvedJob(ApiModel):
    """One revision of a job, with all defaults and names filled in."""

    uid: str
    name: str
    namespace: str
    spec: RLJobSpec
    layout: Layout
    endpoints: Endpoints
    secrets: Secrets = Secrets()
    metrics_path: str | None = None
    """Where the scheduler writes metrics.jsonl; unset: nowhere."""
    planner_sets_target: bool = False
    """The job left `targetPolicyLag` open: the planner sets it within the bound, by simulation."""
    operator_scales: bool = False
    """The operator chooses which replicas leave when fewer are wanted; else the scheduler sends the highest numbers
    away."""

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, defaults included. What is for pod specs alone is left out; of environment
        variables because a value may be a secret."""
        return json.dumps(self.model_dump(by_alias=True, mode="json", exclude=_NOT_IN_FILE), sort_keys=True, indent=1)

    @classmethod
    def load(cls, path: str | Path) -> "ResolvedJob":
        """Read job.json.

        Raises:
            JobError: the file cannot be read or is not a resolved job.
        """
        try:
            return cls.model_validate_json(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise JobError(f"{path} is not a resolved job: {error}") from error
