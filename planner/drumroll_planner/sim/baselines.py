"""Other ways to dispatch, made anew from their papers' descriptions, on the same engines, lengths and trainer.

- synchronous: generate a minibatch, train it, load the weights, begin again (bound 0).
- one_step_off: the next minibatch is generated while one trains; both wait for each other (verl's one_step_off).
- group_atomic: all samples of a prompt on one replica, prompts dealt out in equal numbers.
- streamrl (arXiv 2504.15930, algorithm 2): the predicted longest fifth of a minibatch on replicas of their own, as many
  as make the sum of both parts' estimated latencies least; longest first on every replica.
- tailsieve: isolates the predicted longest groups of a minibatch on m replicas; m and their number are those with the
  earliest estimated end, by T = sum of tau(j) * (L(j) - L(j+1)) over a replica's answers, longest first.
- seer (arXiv 2511.14617): one probe of each group first, then groups by the longest answer seen of them, longest first.
  Chunks that move between replicas are not modelled.
- rollpacker (arXiv 2509.21009): synchronous rounds that launch a quarter more prompts than they keep; what is not among
  the first is aborted and collected for long rounds. More answers than the group needs are not launched.

Predictions are handed in, so that all get the same; without any they are the true means. Replicas must not fail.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from drumroll.errors import UserError
from drumroll_planner.sim.direct import DirectDispatcher
from drumroll_planner.sim.fleet import Fleet
from drumroll_planner.sim.job import SimJob
from drumroll_planner.sim.request import Request
from drumroll_planner.sim.result import SimResult
from drumroll_planner.sim.ticket_book import SimTicket

Floats = npt.NDArray[np.float64]
Placement = list[tuple[int, int]]
"""(replica, ticket) in the order in which each replica takes them."""

_LONG_SHARE = 0.2
_OVER_LAUNCH = 1.25


class OneStepOff(DirectDispatcher):
    """A minibatch is begun once the one before it is complete and the one before that is trained."""

    def _admit_next(self) -> bool:
        batch = self._next // self._rules.prompts_per_step
        if self._next % self._rules.prompts_per_step:
            return True
        complete = len(self._decided) >= batch or not any(ticket.missing for ticket in self._tickets.values())
        return complete and self._num_trained >= batch - 1


class Pinned(DirectDispatcher):
    """Every ticket's replica is fixed when its minibatch is placed."""

    def __init__(self, fleet: Fleet, place: Callable[["Pinned", list[int]], Placement]) -> None:
        super().__init__(fleet)
        self._place = place
        self._queues: list[deque[tuple[int, int]]] = [deque() for _ in range(fleet.job.num_replicas)]
        """(ticket, samples of it still to lease) of each replica."""
        self._placed = 0

    def dispatch(self, now: float) -> None:
        given = True
        while given:
            given = False
            for replica, queue in enumerate(self._queues):
                if not queue and self._placed < self._total:
                    self._place_next()
                while queue and self._loads[replica] < self.fleet.job.max_concurrent and self._give(replica, queue):
                    given = True

    def _place_next(self) -> None:
        batch = list(range(self._placed, min(self._placed + self._rules.prompts_per_step, self._total)))
        self._placed += len(batch)
        for replica, ticket in self._place(self, batch):
            self._queues[replica].append((ticket, self._rules.group_size))

    def _give(self, replica: int, queue: deque[tuple[int, int]]) -> bool:
        ordinal, left = queue[0]
        version = self._versions[replica]
        ticket = self._tickets.get(ordinal)
        if ticket is None:
            if version < self._window.floor or not self._allowed(None, version):
                return False
            ticket = self._tickets[ordinal] = SimTicket(ordinal, self._rules.group_size)
            self._next += 1
        elif not self._allowed(ticket.version, version):
            return False
        self._lease(ticket, replica, version)
        queue.popleft()
        if left > 1:
            queue.appendleft((ordinal, left - 1))
        return True


class Seer(DirectDispatcher):
    """Probes first; then the group with the longest answer seen so far."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._seen: dict[int, int] = {}
        """Longest finished answer of each ticket."""
        self._open: dict[int, SimTicket] = {}

    def done(self, now: float, replica: int, request: Request) -> None:
        ticket, _ = self._running[replica][request]
        self._seen[ticket.ordinal] = max(self._seen.get(ticket.ordinal, 0), request.length)
        super().done(now, replica, request)

    def _candidate(self, version: int) -> SimTicket | None:
        if version < self._window.floor:
            return None
        if self._unadmitted > 0 and self._allowed(None, version):
            ticket = self._admit()
            self._open[ticket.ordinal] = ticket
            return ticket
        self._open = {ordinal: ticket for ordinal, ticket in self._open.items() if ticket.waiting}
        may = [ticket for ticket in self._open.values() if self._allowed(ticket.version, version)]
        # A probe that runs still may be the longest of all.
        return max(may, key=lambda t: (self._seen.get(t.ordinal, 10**9), -t.ordinal), default=None)


class RollPacker(DirectDispatcher):
    """Rounds: short ones launch more prompts than they keep, long ones take what the short ones gave up."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._long: deque[int] = deque()
        self._round: deque[int] = deque()
        self._fresh = 0

    def dispatch(self, now: float) -> None:
        if not self._round and not self._tickets and self._num_trained == len(self._decided):
            self._begin_round()
        super().dispatch(now)

    def _begin_round(self) -> None:
        size = self._rules.prompts_per_step
        left = self._total - self._fresh
        if len(self._long) >= size or not left:
            self._round.extend(self._long.popleft() for _ in range(min(size, len(self._long))))
            return
        more = min(left, int(size * _OVER_LAUNCH))
        self._round.extend(range(self._fresh, self._fresh + more))
        self._fresh += more
        # Near the end there may be too few fresh prompts for a whole step.
        while len(self._round) < size and self._long:
            self._round.append(self._long.popleft())

    def _admit_next(self) -> bool:
        return bool(self._round)

    def _admit(self) -> SimTicket:
        ordinal = self._round.popleft()
        ticket = self._enqueue(ordinal)
        self._next += 1
        return ticket

    def _free_places(self) -> int:
        return min(self._rules.prompts_per_step, self._total - len(self._decided) * self._rules.prompts_per_step)

    def _decide(self) -> None:
        before = len(self._decided)
        super()._decide()
        if len(self._decided) == before:
            return
        for ticket in list(self._tickets.values()):
            self._abort(ticket)
            self._long.append(ticket.ordinal)
            self._next -= 1
        self._long.extend(self._round)
        self._round.clear()
        self._ready.clear()
        self._window = self._make_window()

    def _allowed(self, bucket: int | None, version: int) -> bool:
        # A round is over when its step is decided; more prompts than a step's may be out until then.
        return version >= self._window.floor


def place_atomic(dispatcher: Pinned, batch: list[int]) -> Placement:
    """Prompts in equal numbers, one after the other."""
    count = dispatcher.fleet.job.num_replicas
    return [(ticket % count, ticket) for ticket in batch]


def place_streamrl(predicted: Floats) -> Callable[[Pinned, list[int]], Placement]:
    """The longest fifth on replicas of their own."""

    def place(dispatcher: Pinned, batch: list[int]) -> Placement:
        job = dispatcher.fleet.job
        ordered = _longest_first(batch, predicted)
        cut = max(1, round(_LONG_SHARE * len(ordered)))
        long, rest = ordered[:cut], ordered[cut:]
        if job.num_replicas == 1 or not rest:
            return [(ticket % job.num_replicas, ticket) for ticket in ordered]

        def latency(tickets: Sequence[int], quantile: float, replicas: int) -> float:
            batch_size = min(job.max_concurrent, -(-len(tickets) * job.rules.group_size // replicas))
            length = float(np.quantile([_length(predicted, ticket) for ticket in tickets], quantile))
            waves = -(-len(tickets) * job.rules.group_size // (replicas * batch_size))
            return job.replica_costs[0].base(batch_size) * length * waves

        counts = range(1, job.num_replicas)
        few = min(counts, key=lambda n: latency(long, 0.9, n) + latency(rest, 0.5, job.num_replicas - n))
        return [
            *((place % few, ticket) for place, ticket in enumerate(long)),
            *((few + place % (job.num_replicas - few), ticket) for place, ticket in enumerate(rest)),
        ]

    return place


def place_tailsieve(predicted: Floats) -> Callable[[Pinned, list[int]], Placement]:
    """The longest groups on m replicas, the rest on the others, as ends earliest."""

    def place(dispatcher: Pinned, batch: list[int]) -> Placement:
        job = dispatcher.fleet.job
        count = job.num_replicas
        ordered = _longest_first(batch, predicted)
        lengths = [_length(predicted, ticket) for ticket in ordered]
        bases = np.array(job.replica_costs[0].bases(job.max_concurrent))
        best: tuple[float, list[int]] = (np.inf, [])
        for isolated, tails in _splits(len(ordered), count):
            homes = [place % tails for place in range(isolated)]
            homes += [tails + place % (count - tails) for place in range(len(ordered) - isolated)]
            ends = [
                _end([lengths[i] for i, home in enumerate(homes) if home == replica], job.rules.group_size, bases)
                for replica in range(count)
            ]
            best = min(best, (max(ends), homes))
        return list(zip(best[1], ordered, strict=True))

    return place


def _splits(groups: int, replicas: int) -> Iterable[tuple[int, int]]:
    """(groups to isolate, replicas for them); (0, 0) isolates none."""
    yield 0, 0
    for tails in range(1, replicas // 2 + 1):
        for share in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
            yield max(1, round(share * groups)), tails


def _end(lengths: Sequence[float], group: int, bases: Floats) -> float:
    """When a replica is done with groups of these lengths, longest first, all begun at once; without context."""
    answers = np.repeat(np.array([*lengths, 0.0]), [group] * len(lengths) + [1])
    count = np.minimum(np.arange(1, len(answers)), len(bases) - 1)
    # Behind the last place the answers queue: each wave counts in full.
    waves = np.arange(1, len(answers)) / count
    return float((bases[count] * waves * (answers[:-1] - answers[1:])).sum())


def _longest_first(batch: list[int], predicted: Floats) -> list[int]:
    return sorted(batch, key=lambda ticket: (-_length(predicted, ticket), ticket))


def _length(predicted: Floats, ticket: int) -> float:
    return float(predicted[ticket % len(predicted)])


BASELINES = ("synchronous", "one_step_off", "group_atomic", "streamrl", "tailsieve", "seer", "rollpacker")


def simulate_baseline(name: str, job: SimJob, *, predicted: Floats | None = None, record: bool = False) -> SimResult:
    """Run a baseline on a job; `predicted` [tickets] are mean answer lengths in tokens, in dispatch order.

    Synchronous, one-step-off and RollPacker have a lag bound of their own (0, 1, 0); the others keep the job's.

    Raises:
        UserError: there is no baseline of this name, or the job has failing replicas.
    """
    if job.failures or job.joins:
        raise UserError("baselines are simulated without failures and joins")
    lengths = predicted if predicted is not None else job.lengths.mean(axis=1)
    bounds = {"synchronous": 0, "rollpacker": 0, "one_step_off": 1}
    if name in bounds:
        bound = bounds[name]
        rules = replace(job.rules, max_policy_lag=bound, target_policy_lag=bound, lag_policy="wait")
        job = replace(job, rules=rules, publish_every=1)
    fleet = Fleet(job, record=record)
    makers: dict[str, Callable[[], DirectDispatcher]] = {
        "synchronous": lambda: DirectDispatcher(fleet),
        "one_step_off": lambda: OneStepOff(fleet),
        "group_atomic": lambda: Pinned(fleet, place_atomic),
        "streamrl": lambda: Pinned(fleet, place_streamrl(lengths)),
        "tailsieve": lambda: Pinned(fleet, place_tailsieve(lengths)),
        "seer": lambda: Seer(fleet),
        "rollpacker": lambda: RollPacker(fleet),
    }
    if name not in makers:
        raise UserError(f"baseline {name!r} is not known; write one of {', '.join(BASELINES)}")
    return fleet.run(makers[name]())
