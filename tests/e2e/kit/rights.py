"""What the operator asked of the API server, by the server's audit log, and what its roles let it ask. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kit.kube import Object


class Right(NamedTuple):
    """A verb on a resource."""

    group: str
    resource: str
    """With its subresource, as in a rule."""
    verb: str


EVERYBODYS = {"authorization.k8s.io", "authentication.k8s.io"}
"""Groups in which everyone may ask what they may do."""


def granted(rules: Iterable[Object]) -> set[Right]:
    """Of the rules of roles."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule.get("apiGroups", [])
        for resource in rule.get("resources", [])
        for verb in rule["verbs"]
    }


def requests(lines: Iterable[str], user: str) -> Iterator[Object]:
    """The requests of one user for resources, from the lines of an audit log."""
    for line in lines:
        if user not in line:
            continue
        entry = json.loads(line)
        about = entry.get("objectRef", {})
        mine = entry["user"]["username"] == user and "impersonatedUser" not in entry
        if mine and about.get("resource") and about.get("apiGroup", "") not in EVERYBODYS:
            yield entry


def used(entries: Iterable[Object]) -> set[Right]:
    """Rights without which these requests would have been refused; an apply that makes an object needs create too."""
    found = set()
    for entry in entries:
        about = entry["objectRef"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        right = Right(about.get("apiGroup", ""), resource, entry["verb"])
        found.add(right)
        if entry["verb"] == "patch" and entry.get("responseStatus", {}).get("code") == 201:
            found.add(right._replace(verb="create"))
    return found


def refused(entry: Object) -> bool:
    """By the roles, not by a quota or another admission step."""
    return bool(entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid")
