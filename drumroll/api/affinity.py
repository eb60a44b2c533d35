"""Affinity as in the Kubernetes API, every list and text bounded: an API server checks it, and freezes it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumroll.api.base import ApiModel
from drumroll.api.cluster_rules import LABEL_KEY_PATTERN, SELECTOR_RULES
from drumroll.api.rule import Rule

LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"

LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
LabelValues = Annotated[list[LabelValue], Field(max_length=32)]
Weight = Annotated[int, Field(ge=1, le=100)]


class NodeRequirement(ApiModel):
    """A condition on a label of nodes."""

    key: LabelKey
    """Label, or with matchFields metadata.name."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How it is compared with the values."""
    values: LabelValues = []
    """Values; none with Exists and DoesNotExist, one with Gt and Lt."""


class LabelRequirement(ApiModel):
    """A condition on a label of pods."""

    key: LabelKey
    """Label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How it is compared with the values."""
    values: LabelValues = []
    """Values; none with Exists and DoesNotExist."""


class LabelSelector(ApiModel):
    """Pods by their labels; all conditions must hold."""

    rules: ClassVar[tuple[Rule["LabelSelector"], ...]] = SELECTOR_RULES

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=16)] = {}
    """Labels with their values."""
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=16)] = []
    """Further conditions."""


class NodeSelectorTerm(ApiModel):
    """Nodes by their labels and fields; all conditions must hold."""

    match_expressions: Annotated[list[NodeRequirement], Field(max_length=16)] = []
    """Conditions on labels."""
    match_fields: Annotated[list[NodeRequirement], Field(max_length=4)] = []
    """Conditions on fields."""


class NodeSelector(ApiModel):
    """Nodes that meet any of the terms."""

    node_selector_terms: Annotated[list[NodeSelectorTerm], Field(min_length=1, max_length=8)]
    """Terms."""


class PreferredNodes(ApiModel):
    """Nodes that are preferred."""

    weight: Weight
    """How much it counts."""
    preference: NodeSelectorTerm
    """Which nodes."""


class NodeAffinity(ApiModel):
    """Nodes that are needed or preferred."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Only these nodes; default: any."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[PreferredNodes], Field(max_length=8)] = []
    """Rather these nodes."""


class PodAffinityTerm(ApiModel):
    """Pods whose company is meant, and what counts as company."""

    topology_key: LabelKey
    """Label of nodes: pods are together where its value is the same."""
    label_selector: LabelSelector
    """Which pods."""
    namespaces: Annotated[list[Annotated[str, Field(min_length=1, max_length=63)]], Field(max_length=8)] = []
    """Their namespaces; default: the job's own."""


class PreferredCompany(ApiModel):
    """Company that is preferred or shunned."""

    weight: Weight
    """How much it counts."""
    pod_affinity_term: PodAffinityTerm
    """Which company."""


class PodAffinity(ApiModel):
    """Company of other pods."""

    required_during_scheduling_ignored_during_execution: Annotated[list[PodAffinityTerm], Field(max_length=8)] = []
    """Only so."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[PreferredCompany], Field(max_length=8)] = []
    """Rather so."""


class Affinity(ApiModel):
    """Which nodes, and which other pods' company, are wanted or shunned."""

    node_affinity: NodeAffinity | None = None
    """Nodes."""
    pod_affinity: PodAffinity | None = None
    """Pods to be together with."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods to be apart from."""
