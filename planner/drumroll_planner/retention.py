"""What may be deleted: weight versions (section 9 of the protocol) and entries of the sample stream (section 3)."""

from drumroll_planner.entries import entry_order
from drumroll_planner.state import State


def releasable_versions(state: State) -> tuple[int, ...]:
    """Announced versions that nothing needs, ascending.

    Needed are the newest `keep_versions`, pins, everything within the bound, the newest checkpoint's, and those of
    live leases. Versions of an abandoned lineage are needed by pins only.
    """
    living = sorted(version for version in state.announced if not state.is_abandoned(version))
    needed = {version for _, version in state.pins}
    needed.update(living[-max(1, state.rules.keep_versions) :])
    needed.update(version for version in living if version >= state.window.floor)
    needed.update(lease.version for lease in state.leases.values() if not state.is_abandoned(lease.version))
    if state.covered is not None:
        needed.add(state.covered.version)
    return tuple(sorted(version for version in state.announced if version not in needed))


def forget_retired(state: State) -> None:
    """At each coverage: forget the versions that were releasable at the one before, so that lists stay short."""
    releasable = set(releasable_versions(state))
    for version in state.retired & releasable:
        del state.announced[version]
    state.retired = releasable & set(state.announced)


def oldest_needed_entry(state: State) -> str | None:
    """The id below which no entry of the stream is needed, or None where that is not known.

    An entry that was added but not reported yet is newer than every entry known when its lease was given.
    """
    needed = list(state.entries.needed)
    needed += [lease.after_entry for lease in state.leases.values()]
    if not needed:
        needed = [state.entries.newest]
    oldest = min(needed, key=entry_order)
    return None if oldest == "0-0" else oldest
