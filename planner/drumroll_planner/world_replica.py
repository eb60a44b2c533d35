"""A simulated replica: registers, loads weights, leases, generates, reports, hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumroll_planner import records as r
from drumroll_planner.answers import HandedBack, LeaseGrant, SampleReport

if TYPE_CHECKING:
    from drumroll_planner.world import World

_TOKENS_PER_S = 2
_BYTES_PER_TOKEN = 10


@dataclass(slots=True)
class Running:
    """One leased sample."""

    grant: LeaseGrant
    done: int
    length: int
    oldest: int
    newest: int
    report: SampleReport | None = None
    """Finished and in the stream, until the scheduler's verdict is known."""


class SimReplica:
    """See the module. `hung`: makes no progress. `silent`: says nothing, but goes on. `draining`: hands back."""

    def __init__(self, name: str, generation: int, slots: int) -> None:
        self.name = name
        self.generation = generation
        self.slots = slots
        self.version: int | None = None
        self.running: dict[str, Running] = {}
        self.hung = False
        self.silent = False
        self.bad = False
        """Every report is of a version that does not exist."""
        self.update_every = 1
        self.wants_update = True

    @property
    def instance(self) -> str:
        return f"{self.name}-{self.generation}"

    def begin(self, world: World, grants: Sequence[LeaseGrant]) -> None:
        for grant in grants:
            if grant.lease_id in self.running or self.version is None:
                continue
            partial = grant.partial
            oldest = self.version if partial is None else min(partial.oldest_version, self.version)
            done = 0 if partial is None else partial.num_tokens
            length = world.length(grant.row, grant.index)
            self.running[grant.lease_id] = Running(grant, done, length, oldest, self.version)

    def act(self, world: World) -> None:
        if not self.hung:
            self._generate(world)
        if self.silent:
            return
        self._update(world)
        policy = world.policy
        held = {lease_id: running.done for lease_id, running in self.running.items()}
        answer = policy.heartbeat(world.now, self.name, self.instance, held, self.version, False)
        if not answer.known:
            if policy.is_banned(self.name, self.instance):
                self.generation += 1
                self.bad = False
            self.running.clear()
            world.commit(policy.register_replica(world.now, self.name, self.instance, self.slots))
            return
        world.commit(answer.records)
        for lease_id in answer.abort:
            self.running.pop(lease_id, None)
        self.begin(world, answer.missing)
        self._report(world)
        free = self.slots - len(self.running)
        policy.ask(world.now, self.name, self.instance, free, world.request_id())

    def hand_back(self, world: World, *, leaving: bool, partials: bool = True) -> None:
        """Drain: everything unfinished goes back, with what is done of it."""
        back = [self._handed_back(world, running, partials) for running in self.running.values() if not running.report]
        verdicts = world.policy.hand_back(world.now, self.name, self.instance, back, leaving)
        world.commit(verdicts.records)
        self.running.clear()
        if leaving:
            del world.replicas[self.name]

    def _handed_back(self, world: World, running: Running, partials: bool) -> HandedBack:
        partial = None
        if partials and running.done:
            size = running.done * _BYTES_PER_TOKEN
            partial = r.PartialRef(world.add_entry(size), b"p" * 32, size, running.done, running.oldest)
        return HandedBack(running.grant.lease_id, r.ReturnReason.DRAINED, partial)

    def _update(self, world: World) -> None:
        newest = world.policy.state.newest_version
        due = self.wants_update or self.version is None or world.now % self.update_every == 0
        if newest is None or newest == self.version or not due:
            return
        self.version = newest
        self.wants_update = False
        for running in self.running.values():
            if running.report is None:
                running.newest = newest

    def _generate(self, world: World) -> None:
        for running in self.running.values():
            if running.report is not None:
                continue
            running.done = min(running.length, running.done + _TOKENS_PER_S)
            if running.done == running.length:
                running.report = self._sample(world, running)

    def _sample(self, world: World, running: Running) -> SampleReport:
        grant = running.grant
        size = running.done * _BYTES_PER_TOKEN
        return SampleReport(
            lease_id=grant.lease_id,
            ticket=grant.ticket,
            index=grant.index,
            attempt=grant.attempt,
            entry_id=world.add_entry(size),
            sha256=b"s" * 32,
            num_bytes=size,
            oldest_version=running.oldest,
            newest_version=10**6 if self.bad else running.newest,
            num_tokens=running.done,
            reward=world.reward(grant.row, grant.index),
            finished=True,
        )

    def _report(self, world: World) -> None:
        reports = [running.report for running in self.running.values() if running.report is not None]
        verdicts = world.policy.report(world.now, self.name, self.instance, reports)
        world.commit(verdicts.records)
        if not world.loses_reply():
            for verdict in verdicts.verdicts:
                self.running.pop(verdict.lease_id, None)
