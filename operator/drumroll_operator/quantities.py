"""Resource requirements written in one way: what means the same renders the same (case K6)."""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from drumroll.api.pods import ResourceRequirements
from drumroll.api.quantity import parse_quantity
from drumroll.api.spec import RLJobSpec

_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def canonical(name: str, quantity: str) -> str:
    """The API server's own spelling: 1000m of cpu is 1, 1024Mi of memory is 1Gi, 1.5Gi is 1536Mi."""
    amount = parse_quantity(quantity)
    return _cores(amount) if name == "cpu" else _whole(amount)


def canonical_resources(resources: ResourceRequirements) -> dict[str, Any]:
    """Requests and limits for a container; empty where nothing is asked for.

    Devices come whole and unshared: what is limited is requested.
    """
    requests, limits = _amounts(resources.requests), _amounts(resources.limits)
    requests |= {name: amount for name, amount in limits.items() if "/" in name or name.startswith("hugepages-")}
    return {key: value for key, value in (("limits", limits), ("requests", dict(sorted(requests.items())))) if value}


def canonical_spec(spec: RLJobSpec) -> RLJobSpec:
    """The spec with its roles' resources written in one way."""
    roles = {
        name: role.model_copy(update={"resources": _canonical(role.resources)})
        for name, role in (("rollout", spec.rollout), ("trainer", spec.trainer), ("scheduler", spec.scheduler))
    }
    return spec.model_copy(update=roles)


def _canonical(resources: ResourceRequirements) -> ResourceRequirements:
    return ResourceRequirements(requests=_amounts(resources.requests), limits=_amounts(resources.limits))


def _amounts(amounts: Mapping[str, str]) -> dict[str, str]:
    return {name: canonical(name, amounts[name]) for name in sorted(amounts)}


def _cores(amount: Decimal) -> str:
    milli = int((amount * 1000).to_integral_value(ROUND_CEILING))
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _whole(amount: Decimal) -> str:
    number, unit = int(amount.to_integral_value(ROUND_CEILING)), ""
    for larger in _BINARY:
        if not number or number % 1024:
            break
        number, unit = number // 1024, larger
    return f"{number}{unit}"
