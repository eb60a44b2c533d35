"""A simulated world around the policy: replicas, a trainer, a ledger, a stream. Pure: seeded, with its own clock.

Time goes in seconds. Faults are methods, so that a test or a simulation chooses when they happen; without any, the
world is fair and a job always ends. Every fact goes through `commit`, where `watch` may look at it.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from drumroll_planner import records as r
from drumroll_planner.plan import PassInputs
from drumroll_planner.planners import build_planner
from drumroll_planner.policy import Policy, Rules
from drumroll_planner.world_replica import SimReplica
from drumroll_planner.world_trainer import SimTrainer

Watch = Callable[[Policy, r.Record, Callable[[], None]], None]
"""Gets the policy, a fact, and the function that applies it, which it must call."""


def apply_unwatched(policy: Policy, record: r.Record, apply: Callable[[], None]) -> None:
    """The watch that looks at nothing."""
    apply()


class World:
    """See the module. `length(row, index)` is an answer's length in tokens, `reward(row, index)` its reward."""

    def __init__(
        self,
        rules: Rules,
        *,
        seed: int = 0,
        replicas: int = 2,
        slots: int = 4,
        publish_every: int = 1,
        checkpoint_every: int = 2,
        train_s: int = 3,
        publish_s: int = 0,
        length: Callable[[int, int], int] | None = None,
        reward: Callable[[int, int], float] | None = None,
        planner: str = "fifo",
        watch: Watch = apply_unwatched,
    ) -> None:
        self.rules = rules
        self.random = random.Random(seed)
        self.publish_every = publish_every
        self.checkpoint_every = checkpoint_every
        self.train_s = train_s
        self.publish_s = publish_s
        self.length = length or (lambda row, index: 4 + (row * 7 + index * 3) % 17)
        self.reward = reward or (lambda row, index: float(index % 2))
        self._planner = build_planner(planner)
        self._watch = watch
        self.now = 0.0
        self.incarnation = 1
        self.policy = Policy(rules, incarnation=1)
        self.journal: list[r.Record] = []
        """Every fact that the ledger kept, from the first."""
        self._snapshot: tuple[int, str] | None = None
        self.stream: dict[str, int] = {}
        """Entry id to bytes."""
        self._num_entries = 0
        self._num_requests = 0
        self.lost_replies = 0
        """So many of the next replies to replicas get lost."""
        self.slots = slots
        self.replicas = {f"rollout-{i}": SimReplica(f"rollout-{i}", 0, slots) for i in range(replicas)}
        self.trainer = SimTrainer()
        self.steps: list[tuple[int, frozenset[r.TicketId], int]] = []
        """(step, tickets, version) as trained for the first time."""
        self.commit([self._opened()])

    # -- the scheduler's shell -------------------------------------------------------------------------------------

    def commit(self, records: Sequence[r.Record]) -> None:
        """Journal facts and apply them."""
        for record in records:
            self.journal.append(record)
            self._watch(self.policy, record, lambda record=record: self.policy.apply(record))  # type: ignore[misc]

    def settle(self) -> None:
        """Do all that is due without time passing."""
        for _ in range(1000):
            while (epoch := self.policy.needs_plan()) is not None:
                self.commit(self.policy.add_plan(self._planner.plan(self._pass_inputs(epoch))))
            if not (records := self.policy.tick(self.now)):
                return
            self.commit(records)
        raise AssertionError("the policy never comes to rest")

    def _pass_inputs(self, epoch: int) -> PassInputs:
        size = self.rules.num_prompts
        return PassInputs(epoch, size, 7, np.zeros(size, np.int32), np.full(size, np.nan, np.float32))

    def assign(self) -> None:
        """Lease to the replicas that wait; a lost reply leaves the replica without its grants."""
        assignment = self.policy.assign(self.now)
        self.commit(assignment.records)
        for name, grants in assignment.grants.items():
            if name in self.replicas and not self.loses_reply():
                self.replicas[name].begin(self, grants)
        for name in assignment.update_first & self.replicas.keys():
            self.replicas[name].wants_update = True

    def loses_reply(self) -> bool:
        if self.lost_replies:
            self.lost_replies -= 1
            return True
        return False

    def sweep(self) -> None:
        """Delete what the policy releases from the stream."""
        entries, oldest = self.policy.releasable_entries()
        below = int(oldest.partition("-")[0]) if oldest else 0
        kept = {entry: size for entry, size in self.stream.items() if int(entry.partition("-")[0]) >= below}
        self.stream = {entry: size for entry, size in kept.items() if entry not in set(entries)}
        self.policy.entries_deleted(entries)

    def add_entry(self, num_bytes: int) -> str:
        self._num_entries += 1
        entry_id = f"{self._num_entries}-0"
        self.stream[entry_id] = num_bytes
        return entry_id

    def request_id(self) -> str:
        self._num_requests += 1
        return f"request-{self._num_requests}"

    # -- time ------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One second."""
        self.now += 1
        for replica in list(self.replicas.values()):
            replica.act(self)
            self.settle()
        self.assign()
        self.settle()
        self.trainer.act(self)
        self.settle()
        if self.now % 5 == 0:
            self.sweep()

    @property
    def is_over(self) -> bool:
        return self.policy.outcome is not None

    def run(self, seconds: int = 5000) -> r.JobEnded:
        """Go on until the job ends.

        Raises:
            AssertionError: it did not end in time.
        """
        for _ in range(seconds):
            if self.policy.outcome is not None:
                return self.policy.outcome
            self.advance()
        raise AssertionError(f"no end after {seconds} s: {self.policy.gauges()}")

    # -- faults ----------------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Snapshot the ledger: a restart replays only what comes later."""
        self._snapshot = len(self.journal), json.dumps(self.policy.snapshot())

    def restart_scheduler(self, *, rules: Rules | None = None, lost_records: int = 0) -> None:
        """A new incarnation reads snapshot and tail; `lost_records` of the tail went down with the store's host."""
        self.rules = rules or self.rules
        self.incarnation += 1
        start, snapshot = self._snapshot or (0, None)
        if lost_records:
            del self.journal[max(start, len(self.journal) - lost_records) :]
        if snapshot is None:
            self.policy = Policy(self.rules, incarnation=self.incarnation)
        else:
            self.policy = Policy.from_snapshot(self.rules, json.loads(snapshot), incarnation=self.incarnation)
        for record in self.journal[start:]:
            self.policy.apply(record)
        self.policy.restored(self.now)
        if rules is not None:
            self.commit([self._opened()])

    def _opened(self) -> r.JobOpened:
        return r.JobOpened("uid", repr(self.rules), "data", self.rules.num_prompts, 7, "model")

    def change_rules(self, rules: Rules) -> None:
        """Resume under other rules."""
        self.take_snapshot()
        self.restart_scheduler(rules=rules)

    def add_replica(self, name: str) -> None:
        """A replica comes, or comes back as a new instance."""
        before = self.replicas.get(name)
        generation = before.generation + 1 if before else 0
        self.replicas[name] = SimReplica(name, generation, self.slots)

    def remove_replica(self, name: str) -> None:
        """A replica dies without a word."""
        self.replicas.pop(name, None)

    def lose_stream(self) -> None:
        """The stream comes back empty."""
        self.stream = {}

    def heal(self) -> None:
        """From now on the world is fair."""
        self.lost_replies = 0
        if not self.replicas:
            self.add_replica("rollout-0")
        for replica in self.replicas.values():
            replica.hung = replica.silent = False


def with_rules(rules: Rules, **changes: object) -> Rules:
    """Rules with some values changed."""
    return replace(rules, **changes)  # type: ignore[arg-type]
