"""Restart budgets: which ended pods are charged, how many ends a role bears within its window, how long it waits.

A charge is in the status before the pod is deleted, under the pod's uid; so it is made once, whatever crashes when.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil

from drumroll.api.status import RLJobStatus, RoleRestarts
from drumroll_operator.moments import moment, seconds
from drumroll_operator.observed import PodView
from drumroll_operator.substrate import ROLES, Role
from drumroll_operator.texts import condition_message
from drumroll_operator.timings import Timings
from drumroll_operator.verdicts import Verdict
from drumroll_operator.wanted import Wanted

LAST_MESSAGE_CHARACTERS = 4_096
UIDS_KEPT = 256
"""Most uids that a role's entry holds; further ends wait to be charged until earlier pods are gone."""


@dataclass(frozen=True, slots=True)
class Charge:
    """An end to be paid for."""

    pod: PodView
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Budgets:
    """The restarts of all roles, as a status says."""

    entries: Mapping[str, RoleRestarts]

    @classmethod
    def of(cls, status: RLJobStatus) -> "Budgets":
        """As stored."""
        return cls({entry.role: entry for entry in status.restarts})

    def charged(self, pod: PodView) -> bool:
        """The pod's end is paid for."""
        entry = self.entries.get(pod.role or "")
        return entry is not None and pod.uid in entry.charged_uids

    def charge(self, charges: Sequence[Charge], present: Collection[str], wanted: Wanted, now: float) -> "Budgets":
        """The same with these ends; such as are paid for already, or find no room, change nothing."""
        entries = dict(self.entries)
        for role in ROLES:
            new = [c for c in charges if c.pod.role == role and not self.charged(c.pod)]
            if new:
                entries[role] = _charged(entries.get(role), role, new, present, wanted.budget(role).window_s, now)
        return Budgets(entries)

    def overdrawn(self, wanted: Wanted) -> RoleRestarts | None:
        """The first role whose charges are more than it bears."""
        for role in ROLES:
            entry = self.entries.get(role)
            if entry is not None and entry.count > wanted.borne(role):
                return entry
        return None

    def delay_s(self, role: Role, wanted: Wanted, timings: Timings) -> float:
        """How long after its end a charged pod is replaced."""
        entry = self.entries.get(role)
        share = ceil(entry.count / (wanted.rollouts if role == "rollout" else 1)) if entry is not None else 0
        return min(timings.restart_most_s, timings.restart_first_s * 2.0 ** min(max(share - 1, 0), 30))

    def wire(self) -> list[RoleRestarts]:
        """For the status, in the order of roles."""
        return [self.entries[role] for role in ROLES if role in self.entries]


def _charged(
    old: RoleRestarts | None, role: Role, new: Sequence[Charge], present: Collection[str], window_s: float, now: float
) -> RoleRestarts:
    known = list(old.charged_uids) if old is not None else []
    kept = [uid for uid in known if uid in present]
    taken = list(new[: UIDS_KEPT - len(kept)])
    if not taken and old is not None:
        return old
    gone = [uid for uid in known if uid not in present]
    room = UIDS_KEPT - len(kept) - len(taken)
    last = max(taken, key=lambda charge: charge.pod.ended_at)
    start: datetime = moment(now)
    count = 0
    if old is not None and old.window_start is not None and now < seconds(old.window_start) + window_s:
        start, count = old.window_start, old.count
    return RoleRestarts(
        role=role,
        count=count + len(taken),
        window_start=start,
        last_reason=last.verdict.reason,
        last_message=condition_message(last.verdict.message, most=LAST_MESSAGE_CHARACTERS),
        last_time=moment(last.pod.ended_at),
        charged_uids=[*(gone[-room:] if room else []), *kept, *(charge.pod.uid for charge in taken)],
    )
