"""Whether a namespace's quotas have room for a job's pods. Pure."""

from collections.abc import Iterator, Mapping
from decimal import Decimal

from drumroll.api.quantity import parse_quantity
from drumroll_cli.cluster.findings import Line, Survey, Unseen, fail, ok
from drumroll_cli.cluster.rendering import RolePods

_ALIASES = {"cpu": "requests.cpu", "memory": "requests.memory", "count/pods": "pods"}
"""A quota may spell what it counts in two ways."""


def quota_lines(job: str, pods: Mapping[str, RolePods], seen: Survey) -> Iterator[Line]:
    """A line per quota that is in the way; one where none is; nothing where there are none."""
    if isinstance(seen.quotas, Unseen) or not seen.quotas:
        return
    subject, wants, unset = f"{job}: quota", wanted(pods), left_out(pods)
    good = True
    for quota in seen.quotas:
        name, status = quota["metadata"]["name"], quota.get("status") or {}
        for resource, most in (status.get("hard") or {}).items():
            key, used = _ALIASES.get(resource, resource), str((status.get("used") or {}).get(resource, "0"))
            left = _amount(str(most)) - _amount(used)
            if (want := wants.get(key)) is not None and want > left:
                good = False
                text = f"{name} leaves {_told(left)} of {resource} ({used} of {most} used), {_told(want)} wanted"
                yield fail(subject, text, "ask for less, raise the quota, or wait until others end")
            if (roles := unset.get(key)) and not seen.limit_ranges:
                good = False
                yield fail(
                    subject,
                    f"{name} counts {resource}, and {', '.join(roles)} write none: the API server refuses such pods",
                    f"write {' and '.join(_field(role, key) for role in roles)}",
                )
    if good:
        yield ok(subject, f"enough room in {', '.join(quota['metadata']['name'] for quota in seen.quotas)}")


def wanted(pods: Mapping[str, RolePods]) -> dict[str, Decimal]:
    """What all pods together count, by a quota's name for it."""
    total = {"pods": Decimal(sum(part.count for part in pods.values()))}
    for part in pods.values():
        for kind in ("requests", "limits"):
            for resource, amount in part.amounts(kind).items():
                key = f"{kind}.{resource}"
                total[key] = total.get(key, Decimal(0)) + part.count * parse_quantity(amount)
    return total


def left_out(pods: Mapping[str, RolePods]) -> dict[str, list[str]]:
    """What a quota may count and a role leaves out, by a quota's name for it."""
    found: dict[str, list[str]] = {}
    for role, part in pods.items():
        for kind in ("requests", "limits"):
            for resource in ("cpu", "memory"):
                if resource not in part.amounts(kind):
                    found.setdefault(f"{kind}.{resource}", []).append(role)
    return found


def _field(role: str, key: str) -> str:
    kind, _, resource = key.partition(".")
    return f"{'stream.embedded' if role == 'store' else role}.resources.{kind}.{resource}"


def _amount(text: str) -> Decimal:
    try:
        return parse_quantity(text)
    except ValueError:
        return Decimal(0)


def _told(amount: Decimal) -> str:
    if amount >= 1 << 30 and amount == amount.to_integral_value():
        return f"{amount / (1 << 30):.1f}Gi"
    return f"{amount.normalize():f}"
