"""Late binding: which sample goes to which waiting replica. Pure: works on a draft over the state.

The queue is bucketed by ticket version, because the lag rule gives one answer for all tickets of a version. In
order: tickets that came back, tickets that are partly leased, then new ones of the plan. A replica whose version is
too old for anything, while the newest version is not, is told to update first.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drumroll_planner.admission import Admission
from drumroll_planner.lag import may_lease
from drumroll_planner.records import TicketId
from drumroll_planner.rules import Plan
from drumroll_planner.state import State
from drumroll_planner.tickets import FRESH, QueueKey, Ticket


@dataclass(slots=True)
class Draft:
    """A ticket as it will stand when the draft is applied."""

    ticket: TicketId
    row: int
    predicted_tokens: int
    version: int | None
    indexes: list[int]
    """Samples still to lease, the next one last."""
    key: QueueKey
    new: bool = False
    replicas: set[str] = field(default_factory=set)
    """Replicas that run or will run samples of this ticket."""


class Assigner:
    """One assignment: `pick` a ticket that a replica of some version may work on, `take` a sample of it."""

    def __init__(self, state: State, plans: Mapping[int, Plan]) -> None:
        self._state = state
        self._window = state.window
        self._out = dict(state.out)
        self._num_out = state.num_out
        self._newest = state.newest_version or 0
        self._admission = Admission(state, plans)
        self._drafts: dict[int | None, list[tuple[QueueKey, Draft]]] = {}
        self._popped: list[tuple[int | None, tuple[QueueKey, TicketId]]] = []
        self._touched: set[TicketId] = set()

    def pick(self, version: int | None) -> Draft | None:
        """The first ticket in the queue that may get a sample from a replica of `version`; changes nothing."""
        if version is None or version < self._window.floor or self._state.is_abandoned(version):
            return None
        heads = [head for bucket in self._buckets() if self._allowed(bucket, version) and (head := self._head(bucket))]
        if heads:
            return min(heads, key=lambda draft: draft.key)
        if not self._allowed(None, version) or (admitted := self._admission.next()) is None:
            return None
        ticket_id, row, predicted = admitted
        indexes = list(range(self._state.rules.group_size - 1, -1, -1))
        return Draft(ticket_id, row, predicted, None, indexes, (FRESH, *ticket_id), new=True)

    def take(self, draft: Draft, version: int) -> int:
        """Lease the next sample of what `pick` gave, at `version`; the sample's index."""
        if draft.new:
            draft.new = False
            self._admission.take(draft.predicted_tokens)
        elif draft.ticket in self._touched:
            heapq.heappop(self._drafts[draft.version])
        else:
            self._popped.append((draft.version, heapq.heappop(self._state.pending[draft.version])))
        self._touched.add(draft.ticket)
        self._move(draft, version if draft.version is None else min(draft.version, version))
        index = draft.indexes.pop()
        if draft.indexes:
            heapq.heappush(self._drafts.setdefault(draft.version, []), (draft.key, draft))
        return index

    @property
    def num_samples(self) -> int:
        """Samples of new tickets that the credit allows on the newest weights, and a ticket's more."""
        places = min(self._window.credit - self._num_out, self._state.places)
        return (max(0, places) + 1) * self._state.rules.group_size

    def close(self) -> None:
        """Put the state's queue back as it was."""
        for bucket, entry in self._popped:
            heapq.heappush(self._state.pending[bucket], entry)

    def _buckets(self) -> Iterable[int | None]:
        return self._state.pending.keys() | self._drafts.keys()

    def _allowed(self, bucket: int | None, version: int) -> bool:
        """Rules (a), (b) and (c) for a ticket of version `bucket` that a replica of `version` gets a sample of."""
        return may_lease(self._window, self._out, self._num_out, origin=bucket, to=version, newest=self._newest)

    def _head(self, bucket: int | None) -> Draft | None:
        drafts = self._drafts.get(bucket)
        best = drafts[0][1] if drafts else None
        found = self._untouched_head(bucket)
        if found is None or (best is not None and best.key < found[0]):
            return best
        key, ticket = found
        indexes = ticket.waiting()[::-1]
        running = {lease.replica for lease in ticket.leases()}
        return Draft(ticket.id, ticket.row, ticket.predicted_tokens, ticket.version, indexes, key, replicas=running)

    def _untouched_head(self, bucket: int | None) -> tuple[QueueKey, Ticket] | None:
        while (found := self._state.queue_head(bucket)) is not None and found[1].id in self._touched:
            self._popped.append((bucket, heapq.heappop(self._state.pending[bucket])))
        return found

    def _move(self, draft: Draft, version: int) -> None:
        if draft.version == version:
            return
        if draft.version is None:
            self._num_out += 1
        else:
            self._out[draft.version] -= 1
        self._out[version] = self._out.get(version, 0) + 1
        draft.version = version
