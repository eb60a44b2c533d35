"""Contradictions inside what a pod is given: resources and environment variables. `rules` says how a rule works."""

import re
from typing import TYPE_CHECKING, Protocol

from drumroll.api.quantity import parse_quantity
from drumroll.api.rule import Rule

if TYPE_CHECKING:
    from drumroll.api.pods import EnvVar, ResourceRequirements

GPU = "nvidia.com/gpu"
_RESOURCE_NAME = r"^(cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMG]i|[a-z0-9.-]+/[A-Za-z0-9._-]+)$"


def gpus_are(resources: "ResourceRequirements", number: int) -> bool:
    """Whether the GPUs, where there are any, are as many; what is no whole number is another rule's matter."""
    amount = resources.limits.get(GPU, "0")
    return re.fullmatch("[0-9]{1,9}", amount) is None or int(amount) in (0, number)


def cel_gpus_are(number: str) -> str:
    """CEL: the GPUs of `self.resources`, where there are any, are as many as the expression says."""
    amount = f"string(self.resources.limits['{GPU}'])"
    return (
        f"!('{GPU}' in self.resources.limits) || !{amount}.matches('^[0-9]{{1,9}}$') || "
        f"int({amount}) == 0 || int({amount}) == {number}"
    )


def _within_limits(resources: "ResourceRequirements") -> bool:
    limits = resources.limits
    return all(
        parse_quantity(amount) <= parse_quantity(limits[name])
        for name, amount in resources.requests.items()
        if name in limits
    )


def _names_known(resources: "ResourceRequirements") -> bool:
    return all(re.fullmatch(_RESOURCE_NAME, name) for name in (*resources.requests, *resources.limits))


def _devices_whole(resources: "ResourceRequirements") -> bool:
    amounts = [*resources.requests.items(), *resources.limits.items()]
    return all(re.fullmatch("[0-9]{1,9}", amount) for name, amount in amounts if "/" in name)


def _device_limits_given(resources: "ResourceRequirements") -> bool:
    limits = resources.limits
    return all(
        name in limits and parse_quantity(limits[name]) == parse_quantity(amount)
        for name, amount in resources.requests.items()
        if "/" in name
    )


RESOURCES_RULES: tuple[Rule["ResourceRequirements"], ...] = (
    Rule(
        id="resource-names",
        field="",
        message="a resource has no such name: write cpu, memory, ephemeral-storage, hugepages-2Mi or a device such as "
        "nvidia.com/gpu",
        holds=_names_known,
        cel=f"self.requests.all(k, k.matches('{_RESOURCE_NAME}')) && self.limits.all(k, k.matches('{_RESOURCE_NAME}'))",
    ),
    Rule(
        id="whole-devices",
        field="",
        message="devices such as nvidia.com/gpu come whole: write a whole number, such as 1",
        holds=_devices_whole,
        cel="self.requests.all(k, !k.contains('/') || string(self.requests[k]).matches('^[0-9]{1,9}$')) && "
        "self.limits.all(k, !k.contains('/') || string(self.limits[k]).matches('^[0-9]{1,9}$'))",
    ),
    Rule(
        id="device-limits",
        field="requests",
        message="devices such as nvidia.com/gpu cannot be shared: write the same number under limits, or only there",
        holds=_device_limits_given,
        cel="self.requests.all(k, !k.contains('/') || (k in self.limits && isQuantity(string(self.requests[k])) && "
        "quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) == 0))",
    ),
    Rule(
        id="requests-within-limits",
        field="requests",
        message="more is requested than the limit allows: write requests that are at most limits",
        holds=_within_limits,
        cel="self.requests.all(k, !(k in self.limits) || "
        "quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
    ),
)

ENV_VAR_RULES: tuple[Rule["EnvVar"], ...] = (
    Rule(
        id="env-one-source",
        field="",
        message="an environment variable has one source: write exactly one of value and valueFrom",
        holds=lambda variable: (variable.value is None) != (variable.value_from is None),
        cel="has(self.value) != has(self.valueFrom)",
    ),
    Rule(
        id="env-reserved",
        field="name",
        message="names that begin with DRUMROLL_ are Drumroll's own: write another name",
        holds=lambda variable: not variable.name.startswith("DRUMROLL_"),
        cel="!self.name.startsWith('DRUMROLL_')",
    ),
)


class HasEnv(Protocol):
    """A model with environment variables."""

    @property
    def env(self) -> "list[EnvVar]":
        """Its variables."""


def _names_differ(owner: HasEnv) -> bool:
    names = [variable.name for variable in owner.env]
    return len(names) == len(set(names))


def _names_explained(owner: HasEnv) -> str:
    names = [variable.name for variable in owner.env]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"{', '.join(twice)} is set more than once: write each variable once"


ENV_RULES: tuple[Rule[HasEnv], ...] = (
    Rule(
        id="env-once",
        field="env",
        message="a variable is set more than once: write each variable once",
        holds=_names_differ,
        cel=None,  # The list is a map by name in the schema: a server refuses duplicates by itself.
        explain=_names_explained,
    ),
)
