"""Rules (a), (b) and (c) of the lag: pure arithmetic over counts of undecided tickets by version.

`out[u]` counts undecided tickets whose oldest token (kept, or coming under a live lease) is of version u. With
B tickets a step, r places free in the step being filled and k the version that it trains, the rules keep every
ticket able to enter a step before its tokens are older than the bound:

    (a) no lease on a version below k - bound
    (b) for every u in [k - bound, k]:  sum of out[w <= u]  <=  r + (u + bound - k) * B
    (c) sum of out + (pending + stale) * B  <=  r + target * B

`pending` counts the steps that are decided and not yet trained, `stale` the versions by which the replica that is to
begin the ticket is behind the newest announced one. Together they say how far the ticket's version will be behind
when its turn comes. Without them the mean lag would stand above the target whenever decisions run ahead of the
trainer, and places that a new version opens would be filled with the version before it: a step less of the window is
left for the longest answers (decisions/0010, 0016).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LagWindow:
    """The step being filled, as the rules see it."""

    version: int
    """k, the version that the trainer holds when it trains this step."""
    bound: int
    target: int
    free: int
    """r, places free in the step being filled."""
    per_step: int
    """B, places in a step."""
    pending: int = 0
    """Steps decided and not yet trained."""

    @property
    def floor(self) -> int:
        """The oldest version that this step may train on."""
        return self.version - self.bound

    def limit(self, version: int) -> int:
        """Right side of (b): tickets of `version` or older that can still be trained in time."""
        return self.free + (version - self.floor) * self.per_step

    @property
    def credit(self) -> int:
        """Right side of (c)."""
        return self.free + (self.target - self.pending) * self.per_step


def may_move(window: LagWindow, out: Mapping[int, int], *, origin: int | None, to: int) -> bool:
    """Whether (a) and (b) hold after a ticket of version `origin` (None: it had none) becomes one of version `to`.

    Only prefix sums that the move changes are looked at: a state that is infeasible elsewhere still lets tickets
    that are out go on, which is what brings it back.
    """
    if to < window.floor:
        return False
    last = window.version if origin is None else min(origin - 1, window.version)
    if to > last:
        return True
    older = sum(count for version, count in out.items() if version < to)
    for version in range(to, last + 1):
        older += out.get(version, 0)
        if older + 1 > window.limit(version):
            return False
    return True


def has_credit(window: LagWindow, num_out: int, *, stale: int = 0) -> bool:
    """Whether (c) holds after one more ticket is out, on weights `stale` versions behind the newest."""
    return num_out + 1 + max(0, stale) * window.per_step <= window.credit


def may_age(window: LagWindow, num_out: int, *, stale: int) -> bool:
    """Whether a ticket that is out may get a sample on older weights than it has, `stale` versions behind the newest.

    It is as if it began there. On the newest weights it always may: whatever is out goes on.
    """
    return stale <= 0 or has_credit(window, num_out - 1, stale=stale)


def may_lease(
    window: LagWindow, out: Mapping[int, int], num_out: int, *, origin: int | None, to: int, newest: int
) -> bool:
    """Whether a ticket of version `origin` (None: a new one) may get a sample from a replica of version `to`: rules
    (a), (b) and (c). `out`, `num_out`: tickets that are out, by version and in all; `newest`: the newest weights."""
    stale = newest - to
    if origin is None:
        if not has_credit(window, num_out, stale=stale):
            return False
    elif origin <= to:
        return True
    elif not may_age(window, num_out, stale=stale):
        return False
    return may_move(window, out, origin=origin, to=to)


def may_leave(window: LagWindow, left: Mapping[int, int], newest_taken: int) -> bool:
    """Whether a step may be decided that leaves `left` behind: (b) must hold for the step after it.

    What is over the limit at some version is forgiven only to a step that takes nothing newer: then no other choice
    of tickets would leave less, and from an infeasible state strictly the oldest go first.
    """
    older = sum(count for version, count in left.items() if version < window.floor)
    for version in range(window.floor, min(window.version + 1, newest_taken)):
        older += left.get(version, 0)
        if older > (version - window.floor) * window.per_step:
            return False
    return True


def violations(window: LagWindow, out: Mapping[int, int]) -> tuple[int, ...]:
    """Versions u of the window for which (b) does not hold; tickets past the bound count as of the floor."""
    bad = []
    older = sum(count for version, count in out.items() if version < window.floor)
    for version in range(window.floor, window.version + 1):
        older += out.get(version, 0)
        if older > window.limit(version):
            bad.append(version)
    return tuple(bad)
