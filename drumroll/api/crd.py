"""The CustomResourceDefinition of the RLJob, made from its models."""

from typing import Any

import yaml

from drumroll.api.spec import RLJob, RLJobSpec
from drumroll.api.status import RLJobStatus
from drumroll.api.structural import object_schema, validation

GROUP = "drumroll.dev"
VERSION = "v1alpha1"
PLURAL = "rljobs"

_COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Step", "integer", ".status.step", 0),
    ("Version", "integer", ".status.version", 0),
    ("Lag", "number", ".status.policyLag.mean", 0),
    ("Rollout", "string", ".status.rollout.summary", 0),
    ("GPUs", "integer", ".status.gpus", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Steps", "integer", ".status.steps", 1),
    ("Samples", "integer", ".status.samples", 1),
    ("ETA", "integer", ".status.etaSeconds", 1),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
    ("Model", "string", ".spec.model.path", 1),
    ("Message", "string", ".status.message", 1),
)


def custom_resource_definition() -> dict[str, Any]:
    """The whole object, as it is applied to a cluster."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/name": "drumroll"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": "RLJob",
                "listKind": "RLJobList",
                "plural": PLURAL,
                "singular": "rljob",
                "shortNames": ["rlj"],
                "categories": ["drumroll", "rl", "ai"],
            },
            "versions": [_version()],
        },
    }


def crd_yaml() -> str:
    """The CRD as a file, with a first line that says where it comes from."""
    head = "# Made from the models in drumroll/api by `make crd`; changes here are lost.\n"
    return head + yaml.dump(
        custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True
    )


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})
            for name, kind, path, priority in _COLUMNS
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.rollout.replicas",
                "statusReplicasPath": ".status.rollout.replicas",
                "labelSelectorPath": ".status.rollout.selector",
            },
        },
        "schema": {"openAPIV3Schema": _root()},
    }


def _root() -> dict[str, Any]:
    return {
        "description": RLJob.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"description": RLJobSpec.__doc__} | object_schema(RLJobSpec, "spec"),
            "status": {"description": RLJobStatus.__doc__} | object_schema(RLJobStatus, "status"),
        },
        "x-kubernetes-validations": [validation(rule) for rule in RLJob.rules],
    }


class _Dumper(yaml.SafeDumper):
    """Writes repeated parts out: a CRD has no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True
