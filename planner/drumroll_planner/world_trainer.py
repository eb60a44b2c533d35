"""A simulated trainer: asks for steps, trains, publishes, checkpoints, commits; dies and resumes by replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drumroll_planner import records as r

if TYPE_CHECKING:
    from drumroll_planner.world import World


class HistoryLost(AssertionError):
    """Ledger and checkpoints share no history: only the ledger snapshot in a checkpoint helps now."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    chain: str
    version: int
    lineage: int


@dataclass(slots=True)
class SimTrainer:
    """See the module."""

    at: Checkpoint = field(default_factory=lambda: Checkpoint(0, "", 0, 0))
    """What it goes on with."""
    checkpoints: list[Checkpoint] = field(default_factory=lambda: [Checkpoint(0, "", 0, 0)])
    known: list[r.Decided] = field(default_factory=list)
    """Decisions trained since the checkpoint that it started from."""
    epoch: int | None = None
    announced: bool = False
    newest: r.Announced | None = None
    """The last version that it published."""
    incarnation: int = 0
    """Of the scheduler that it last spoke to."""
    decision: r.Decided | None = None
    busy_until: float = 0.0
    exited: bool = False
    rewinds: int = 0

    def kill(self, world: World, *, damaged: int = 0, away_s: int = 3) -> None:
        """It dies and comes back from its newest whole checkpoint; the newest `damaged` ones are broken."""
        for _ in range(min(damaged, len(self.checkpoints) - 1)):
            self.checkpoints.pop()
        self._load(self.checkpoints[-1])
        self.epoch = None
        self.exited = False
        self.busy_until = world.now + away_s

    def _load(self, checkpoint: Checkpoint) -> None:
        self.at = checkpoint
        self.known = []
        self.announced = False
        self.decision = None

    def act(self, world: World) -> None:
        if self.exited or world.now < self.busy_until:
            return
        if self.epoch is None or self.epoch != world.policy.trainer_epoch:
            at = self.at
            world.commit(world.policy.register_trainer(world.now, at.step, at.chain, at.version, at.lineage))
            self.epoch = world.policy.trainer_epoch
        if self.incarnation != world.incarnation:
            # A new scheduler may have lost the last announcement with its ledger's tail.
            self.incarnation = world.incarnation
            world.commit(world.policy.announce(self.newest, None) if self.newest else ())
        if self.decision is not None:
            self._finish(world, self.decision)
        elif not self.announced and self._published(world):
            self._announce(world)
        else:
            self._ask(world)

    def _published(self, world: World) -> bool:
        """Whether the version that it holds is one that is published: the first, a rewind's, or every n-th."""
        rewound = world.policy.state.rewound
        of_rewind = rewound is not None and rewound.version == self.at.version
        last = self.at.step == world.policy.state.num_steps
        return self.at.step % world.publish_every == 0 or of_rewind or last

    def _announce(self, world: World) -> None:
        at = self.at
        self.newest = r.Announced(at.version, at.step, at.lineage, f"manifest-{at.version}", f"weights-{at.version}")
        world.commit(world.policy.announce(self.newest, None))
        self.announced = True

    def _ask(self, world: World) -> None:
        policy = world.policy
        answer = policy.next_step(self.at.step, self.at.chain, ())
        if answer.outcome == "send_known":
            answer = policy.next_step(self.at.step, self.at.chain, tuple(self.known))
        world.commit(answer.records)
        if answer.rewind is not None:
            self._rewind(answer.rewind)
        elif answer.decision is not None:
            self._start(world, answer.decision)
        elif answer.outcome == "finished":
            self._save(world)
            self.exited = True
        elif answer.outcome == "failed" and not world.is_over:
            raise HistoryLost(answer.reason)

    def _rewind(self, rewind: r.Rewound) -> None:
        kept = [checkpoint for checkpoint in self.checkpoints if checkpoint.step <= rewind.step]
        at = kept[-1]
        if at.step != rewind.step:
            raise HistoryLost(f"told to go back to step {rewind.step}, the nearest checkpoint is of {at.step}")
        self._load(Checkpoint(at.step, at.chain, rewind.version, rewind.lineage))
        self.checkpoints = kept
        self.rewinds += 1

    def _start(self, world: World, decision: r.Decided) -> None:
        if (decision.version, decision.lineage) != (self.at.version, self.at.lineage):
            # The ledger lost a rewind, or this trainer missed one: registering tells both.
            self.epoch = None
            return
        lost = [
            (member.ticket, sample.index)
            for member in decision.tickets
            for sample in member.samples
            if sample.entry_id not in world.stream
        ]
        if lost:
            world.commit(world.policy.lost_samples(decision.step, lost))
            return
        self.decision = decision
        self.busy_until = world.now + world.train_s

    def _finish(self, world: World, decision: r.Decided) -> None:
        at = Checkpoint(decision.step + 1, decision.chain, decision.version + 1, decision.lineage)
        self.at, self.decision = at, None
        self.known.append(decision)
        self.announced = False
        if self._published(world):
            self._announce(world)
        world.commit(world.policy.trained(decision.step, at.version, at.chain, {"reward": 0.5}))
        step = (decision.step, frozenset(member.ticket for member in decision.tickets), decision.version)
        if step not in world.steps:
            world.steps.append(step)
        if at.step % world.checkpoint_every == 0 or world.policy.checkpoint_wanted:
            self._save(world)
        self.busy_until = world.now + world.publish_s

    def _save(self, world: World) -> None:
        if self.checkpoints[-1] != self.at:
            self.checkpoints = [*self.checkpoints, self.at][-world.rules.keep_checkpoints :]
        covered = r.Covered(self.at.step, self.at.version, self.at.lineage, f"step_{self.at.step:06d}")
        world.commit(world.policy.covered(covered))
