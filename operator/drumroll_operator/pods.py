"""A job's pods on a cluster: what `manifests` says of them, made fit for a namespace with the *restricted* profile.

Pure and deterministic: the same job and settings give the same pod, whoever renders it.
"""

from drumroll.job import ResolvedJob
from drumroll_operator.manifests import Manifest
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import Role


def pod(job: ResolvedJob, settings: OperatorSettings, role: Role, index: int = 0, *, set_number: int = 0) -> Manifest:
    """One pod. `set_number`: value of the label drumroll.dev/set of trainer pods; 0: no label.

    Raises:
        JobRefused: a podTemplatePatch cannot be applied.
    """
    raise AssertionError((job, settings, role, index, set_number))
