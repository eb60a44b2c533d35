"""Makes the plan of each pass: in a process of its own, ahead of time, from the answers of the passes before.

    <job dir>/plans/answers.log      every group's lengths, appended as steps are decided and groups end
    <job dir>/plans/fleet.json       replicas and costs as they are when a plan is begun
    <job dir>/plans/plan-<digest>.plan

The scheduler's event loop only appends and looks whether a plan is there; reading answers, fitting and simulating is
the child's work. A pass whose plan is not there in time gets the seeded shuffle. A plan that is journaled is read from
its file after a restart; a shuffle can also be made again.
"""

import asyncio
import json
import logging
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from drumroll_planner import records as r
from drumroll_planner.asp import AspPlan, planfile
from drumroll_planner.lengths import log
from drumroll_planner.plan import PassInputs, PassPlan, Planner
from drumroll_planner.speeds import Speeds
from drumroll_planner.state import State

from drumroll.errors import CorruptError, DataError
from drumroll.segments import replace_file
from drumroll_scheduler.planned import PassWatch
from drumroll_scheduler.trainer_costs import TrainerCosts

logger = logging.getLogger(__name__)

_AHEAD_STEPS = 8
_AHEAD_SHARE = 0.1
"""A plan is begun when so many steps, or this share of the pass, are left to admit."""
_WAIT_S = 300.0
"""How long a pass may wait for its plan."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What a job says of its plans."""

    seed: int
    learns: bool
    """Plans are made from lengths: planner asp, with a length model."""
    plans_dir: Path
    job_file: Path


@dataclass(slots=True)
class _Wanted:
    """A plan that the child makes."""

    epoch: int
    since: float
    ready: AspPlan | None = None
    failed: str = ""
    begun: bool = False


@dataclass(slots=True)
class PassPlanner:
    """See the module. One per scheduler, in its event loop."""

    planner: Planner
    settings: PlanSettings
    prompt_tokens: npt.NDArray[np.int32]
    clock: Callable[[], float]
    journaled: Callable[[int], r.PassPlanned | None]
    costs: TrainerCosts = field(default_factory=TrainerCosts)
    watch: PassWatch = field(default_factory=PassWatch)
    work: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted: dict[int, _Wanted] = field(default_factory=dict)
    _notes: list[r.Noted] = field(default_factory=list)
    _num_logged: int = 0

    # -- what happens --------------------------------------------------------------------------------------------

    def observe(self, state: State, record: r.Record) -> None:
        """A fact, before it is applied: lengths of groups that end, and what was planned of them."""
        match record:
            case r.Decided():
                lines = [self._line(state, member.ticket, member.row, record.step) for member in record.tickets]
                self.watch.decided(state, record)
                self._append(state, lines)
            case r.Ended(end=r.TicketEnd.FILTERED | r.TicketEnd.DROPPED):
                tickets = [state.tickets[each.ticket] for each in record.tickets if each.ticket in state.tickets]
                self._append(state, [self._line(state, each.id, each.row, state.num_decided) for each in tickets])
            case r.Trained():
                self.costs.trained(state, record)
                self.watch.trained(record, self.clock())
            case _:
                pass

    def _line(self, state: State, ticket_id: r.TicketId, row: int, step: int) -> bytes:
        ticket = state.tickets.get(ticket_id)
        accepted = [] if ticket is None else [sample.accepted for sample in ticket.samples]
        known = [answer for answer in accepted if answer is not None]
        longest = max((answer.num_tokens for answer in known), default=0)
        # Who did not come back before the group was given up ran at least as long as its siblings.
        answers = [(longest, True) if one is None else (one.num_tokens, not one.finished) for one in accepted]
        reward = sum(answer.reward for answer in known) / len(known) if known else math.nan
        return log.encode(row, step, reward=reward, answers=answers, group_size=state.rules.group_size)

    def _append(self, state: State, lines: list[bytes]) -> None:
        if not self.settings.learns or not lines:
            return
        path = self.settings.plans_dir / "answers.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write((log.head(state.rules.group_size) if file.tell() == 0 else b"") + b"".join(lines))
            self._num_logged += len(lines)
        except OSError as error:
            # Plans get worse by it; the job does not stop for it.
            logger.warning("answers cannot be noted for the length models: %s", error)

    # -- plans ---------------------------------------------------------------------------------------------------

    def look_ahead(self, state: State) -> None:
        """Begin the next pass's plan in time."""
        epoch = state.cursor.epoch
        left = state.pass_length(epoch) - state.cursor.ordinal
        early = max(_AHEAD_STEPS * state.rules.prompts_per_step, _AHEAD_SHARE * state.pass_length(epoch))
        wanted = epoch in state.passes and left <= early and state.places > left and not state.no_more_steps
        last = state.rules.epochs is not None and epoch + 1 >= state.rules.epochs
        if wanted and not last and self._learns_from(epoch + 1) and self.journaled(epoch + 1) is None:
            self._want(epoch + 1)

    def _learns_from(self, epoch: int) -> bool:
        return self.settings.learns and epoch > 0 and (self.settings.plans_dir / "answers.log").exists()

    def _want(self, epoch: int) -> _Wanted:
        if epoch not in self._wanted:
            self._wanted = {epoch: _Wanted(epoch, self.clock())}
            self.work.set()
        return self._wanted[epoch]

    def plan(self, epoch: int) -> PassPlan | None:
        """The plan of a pass; None while it is being made.

        Raises:
            DataError: the pass is journaled, and its plan is neither in its file nor can be made again.
        """
        journaled = self.journaled(epoch)
        if journaled is not None:
            return self._again(epoch, journaled)
        if not self._learns_from(epoch):
            return self._told(self._simple(epoch))
        wanted = self._want(epoch)
        if wanted.ready is not None:
            return self._told(wanted.ready)
        if wanted.failed or self.clock() - wanted.since > _WAIT_S:
            why = wanted.failed or f"no plan within {_WAIT_S:g} s"
            self._notes.append(r.Noted("PlanFailed", f"pass {epoch} is shuffled: {why}"))
            return self._told(self._simple(epoch))
        return None

    def _told(self, plan: PassPlan) -> PassPlan:
        self.watch.planned(plan, self.clock())
        return plan

    def _simple(self, epoch: int) -> PassPlan:
        return self.planner.plan(
            PassInputs(
                epoch=epoch,
                num_prompts=len(self.prompt_tokens),
                seed=self.settings.seed,
                prompt_tokens=self.prompt_tokens,
                history=np.zeros(0, np.float32),
            )
        )

    def _again(self, epoch: int, journaled: r.PassPlanned) -> PassPlan:
        path = self.settings.plans_dir / planfile.file_name(journaled.plan_digest)
        if path.exists():
            try:
                return planfile.read(path)
            except CorruptError as error:
                logger.warning("%s; trying to make the plan again", error)
        plan = self._simple(epoch)
        if journaled.plan_digest != plan.digest:
            raise DataError(
                f"the plan of pass {epoch} cannot be made again: it had {journaled.num_tickets} prompts and digest "
                f"{journaled.plan_digest[:16]} by planner {journaled.planner}, now it has {len(plan)} and digest "
                f"{plan.digest[:16]} by planner {plan.planner}, and {path} is not there; go on with the data, seed "
                "and planner of the start"
            )
        return plan

    def notes(self) -> list[r.Noted]:
        """What is to be journaled of plans since the last call."""
        found = [*self._notes, *self.watch.notes()]
        self._notes = []
        return found

    def gauges(self) -> dict[str, float]:
        """Planned against actual."""
        return {"plan_groups_logged": float(self._num_logged), **self.watch.gauges()}

    # -- the child -----------------------------------------------------------------------------------------------

    async def run(self, describe: Callable[[], dict[str, object]], poke: Callable[[], None]) -> None:
        """Make wanted plans, one after the other, for ever. `describe`: replicas and costs; `poke`: look again."""
        while True:
            await self.work.wait()
            self.work.clear()
            for wanted in [each for each in self._wanted.values() if not each.begun]:
                wanted.begun = True
                await self._make(wanted, describe())
                poke()

    async def _make(self, wanted: _Wanted, fleet: dict[str, object]) -> None:
        settings = self.settings
        try:
            replace_file(settings.plans_dir / "fleet.json", json.dumps(fleet, indent=1, sort_keys=True).encode())
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "drumroll_scheduler.plan_process",
                str(settings.job_file),
                str(wanted.epoch),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            wanted.failed = f"the planning process cannot be started: {error}"
            return
        try:
            output, trouble = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            said = trouble.decode()[-300:].strip()
            wanted.failed = f"the planning process ended with code {child.returncode}: {said}"
            return
        try:
            wanted.ready = planfile.read(Path(output.decode().strip().splitlines()[-1]))
        except (OSError, CorruptError, IndexError) as error:
            wanted.failed = f"the planning process left no plan: {error}"


def describe_fleet(state: State, speeds: Speeds, costs: TrainerCosts) -> dict[str, object]:
    """Replicas and costs as the planner's process reads them; equal replicas where nothing is known of them."""
    names = sorted(state.replicas)
    step_s = speeds.step_time()
    return {
        "factors": [speeds.factor(name) for name in names] or [1.0],
        "max_concurrent": max((state.replicas[name].slots for name in names), default=1),
        "step_s": None if step_s is None else list(step_s),
        "target_policy_lag": state.target_lag,
        "trainer": asdict(costs),
    }
