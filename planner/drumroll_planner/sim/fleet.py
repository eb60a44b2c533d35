"""The event loop: engines, a trainer, failures and joins around a dispatcher that decides who generates what.

Time stands still while a moment's events are handled; then the dispatcher gives out work, and every engine that was
touched says when it wants to be looked at next. The dispatcher is the scheduler: the real policy (`policy_run`), the
same rules at the level of tickets (`direct`), or a baseline.
"""

import heapq
from collections.abc import Callable
from math import inf

from drumroll.errors import JobFailed
from drumroll_planner.costs import CostModel
from drumroll_planner.sim.dispatcher import Chosen, Dispatcher
from drumroll_planner.sim.engine import Engine
from drumroll_planner.sim.job import SimJob
from drumroll_planner.sim.recorder import Recorder
from drumroll_planner.sim.request import Request
from drumroll_planner.sim.result import SimResult

_REPLICA, _TOLD, _LOADED, _HEARD, _TRAINED, _COMMITTED, _FAIL, _BACK, _JOIN, _TIMER = range(10)
"""Kinds of events; of two at the same moment the smaller comes first."""


class Replica:
    """One engine of the fleet and what the fleet knows of it."""

    __slots__ = ("alive", "costs", "engine", "loading", "spent_s", "stamp", "version")

    def __init__(self, costs: CostModel, engine: Engine, version: int) -> None:
        self.costs = costs
        self.engine = engine
        self.version = version
        self.alive = True
        self.loading: int | None = None
        """The version that is being loaded."""
        self.stamp = 0
        """Of its newest event; older ones are void."""
        self.spent_s = 0.0
        """Busy time of its engines before the last failure."""


class Fleet:
    """See the module. `run` gives the result; what a dispatcher may use is public."""

    def __init__(self, job: SimJob, *, record: bool = False) -> None:
        self.job = job
        self.now = 0.0
        self.version = 0
        """Newest published."""
        self.recorder = Recorder(job, record=record)
        self.replicas: list[Replica] = []
        self._touched: set[int] = set()
        self._events: list[tuple[float, int, int, int]] = []
        self._dispatcher: Dispatcher
        self._step = 0
        self._untold: dict[int, tuple[int, Request]] = {}
        """Answers whose reports are under way."""
        self._num_told = 0
        self._chosen: Chosen | None = None
        self._started_s = 0.0
        self._trained_s = 0.0
        self.lengths: list[list[int]] = job.lengths.tolist()
        self.prompts: list[int] = job.prompt_tokens.tolist()

    # -- for dispatchers -----------------------------------------------------------------------------------------

    def send(self, replica: int, ticket: int, index: int, key: object, *, group: object, done: int = 0) -> Request:
        """Give a replica one sample; `ticket` is the dispatch-order index, `done` tokens exist already."""
        place = ticket % len(self.lengths)
        request = Request(key, self.prompts[place], self.lengths[place][index], done=done, group=group)
        request.ticket = ticket
        self.replicas[replica].engine.add(self.now, request)
        self._touched.add(replica)
        return request

    def touch(self, replica: int) -> None:
        """The replica's engine was moved: look at it after this moment."""
        self._touched.add(replica)

    def abort(self, replica: int, request: Request) -> int:
        """Take a sample back; tokens of its answer that exist."""
        self._touched.add(replica)
        self._forget(lambda subject, other: other is request)
        return self.replicas[replica].engine.remove(self.now, request)

    def _forget(self, gone: Callable[[int, Request], bool]) -> None:
        """Reports under way that mean nothing any more."""
        if self._untold:
            self._untold = {number: told for number, told in self._untold.items() if not gone(*told)}

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self, dispatcher: Dispatcher) -> SimResult:
        """Simulate until all steps are trained.

        Raises:
            JobFailed: nothing moves any more, or the dispatcher gives up.
        """
        self._dispatcher = dispatcher
        for costs in self.job.replica_costs:
            self._join(costs)
        for number, failure in enumerate(self.job.failures):
            self._at(failure.at_s, _FAIL, number)
        for number, join in enumerate(self.job.joins):
            self._at(join.at_s, _JOIN, number)
        self._at(0.0, _TIMER)
        while not dispatcher.finished:
            if not self._events:
                raise JobFailed(f"nothing moves any more after {self.now:.1f} s, in step {self._step}")
            self._moment()
            if not any(replica.alive for replica in self.replicas) and not self._awaited:
                raise JobFailed(f"no replica is left after {self.now:.1f} s, in step {self._step}")
        return self.recorder.result(self.now, self.replicas)

    @property
    def _awaited(self) -> bool:
        """A replica is still to come, or to come back."""
        return any(kind in (_BACK, _JOIN) for _, kind, _, _ in self._events)

    def _at(self, time: float, kind: int, subject: int = 0, stamp: int = 0) -> None:
        heapq.heappush(self._events, (time, kind, subject, stamp))

    def _moment(self) -> None:
        """All events of one moment, then the dispatcher, then the next events of who was touched."""
        events = self._events
        now = self.now = events[0][0]
        while events and events[0][0] <= now:
            _, kind, subject, stamp = heapq.heappop(events)
            if kind == _REPLICA:
                if stamp == self.replicas[subject].stamp:
                    self._look_at(now, subject)
            else:
                self._handle(now, kind, subject, stamp)
        if self._chosen is None:
            self._begin_step(now)
        self._dispatcher.dispatch(now)
        for subject in self._touched:
            self._schedule(now, subject)
        self._touched.clear()

    def _look_at(self, now: float, subject: int) -> None:
        self._touched.add(subject)
        engine = self.replicas[subject].engine
        engine.advance(now)
        # What an answer leads to may take others of them back.
        while engine.finished and engine.finished[0][0] <= now:
            time, request = engine.finished.popleft()
            self.recorder.sample(subject, request.started_at, time, request)
            if self.job.turnaround_s:
                self._num_told += 1
                self._untold[self._num_told] = (subject, request)
                self._at(now + self.job.turnaround_s, _TOLD, subject, self._num_told)
            else:
                self._dispatcher.done(now, subject, request)

    def _tell(self, now: float, subject: int, number: int) -> None:
        """The scheduler has the report of an answer that nobody has taken back, from a replica that lives."""
        told = self._untold.pop(number, None)
        if told is not None:
            self._touched.add(subject)
            self._dispatcher.done(now, subject, told[1])

    def _schedule(self, now: float, subject: int) -> None:
        replica = self.replicas[subject]
        replica.stamp += 1
        if not replica.alive:
            return
        engine = replica.engine
        if engine.time <= now:
            engine.begin()
        time = engine.next_time()
        if time < inf:
            heapq.heappush(self._events, (time, _REPLICA, subject, replica.stamp))

    def _handle(self, now: float, kind: int, subject: int, stamp: int) -> None:
        match kind:
            case 1:
                self._tell(now, subject, stamp)
            case 2:
                self._loaded(now, subject, stamp)
            case 3:
                self._hear(now)
            case 4:
                self._publish(now, subject)
            case 5:
                self._commit(now, subject)
            case 6:
                self._fail(now, subject)
            case 7:
                self._come_back(now, subject)
            case 8:
                self._join(self.job.joins[subject].costs or self.job.replica_costs[0])
            case _:
                again = self._dispatcher.timer(now)
                if again is not None:
                    self._at(again, _TIMER)

    # -- replicas ------------------------------------------------------------------------------------------------

    def _join(self, costs: CostModel) -> None:
        self.replicas.append(Replica(costs, self._engine(costs), self.version))
        self.recorder.joined()
        self._dispatcher.joined(self.now, len(self.replicas) - 1)

    def _engine(self, costs: CostModel) -> Engine:
        job = self.job
        return Engine(
            costs,
            max_concurrent=job.max_concurrent,
            chunk_tokens=job.chunk_tokens,
            kv_tokens=job.kv_tokens,
            share_prefix=job.share_prefix,
            now=self.now,
        )

    def _fail(self, now: float, number: int) -> None:
        failure = self.job.failures[number]
        if failure.replica >= len(self.replicas) or not self.replicas[failure.replica].alive:
            return
        self._look_at(now, failure.replica)
        self._forget(lambda subject, request: subject == failure.replica)
        replica = self.replicas[failure.replica]
        replica.alive = False
        replica.loading = None
        replica.spent_s += replica.engine.busy_s
        self.recorder.lost(replica.engine)
        replica.engine = self._engine(replica.costs)
        self._dispatcher.failed(now, failure.replica)
        if failure.back_after_s is not None:
            self._at(now + failure.back_after_s, _BACK, failure.replica)

    def _come_back(self, now: float, subject: int) -> None:
        replica = self.replicas[subject]
        replica.alive = True
        replica.version = self.version
        self._dispatcher.joined(now, subject)

    def _load(self, now: float, subject: int) -> None:
        """The newest weights, after the step that is under way; requests stand still meanwhile and go on."""
        replica = self.replicas[subject]
        replica.loading = self.version
        pause = replica.costs.publish_pause_s
        ready = replica.engine.pause(now, pause)
        self._touched.add(subject)
        self.recorder.load(subject, ready - pause, ready)
        self._at(ready, _LOADED, subject, self.version)

    def _hear(self, now: float) -> None:
        """Replicas hear of the newest version; one that loads another now takes it afterwards."""
        for subject, replica in enumerate(self.replicas):
            if replica.alive and replica.loading is None and replica.version < self.version:
                self._load(now, subject)

    def _loaded(self, now: float, subject: int, version: int) -> None:
        replica = self.replicas[subject]
        if not replica.alive or replica.loading != version:
            return
        replica.loading = None
        replica.version = version
        self._dispatcher.attested(now, subject, version)
        if self.version > version:
            self._load(now, subject)

    # -- the trainer ---------------------------------------------------------------------------------------------

    def _begin_step(self, now: float) -> None:
        step = self._step
        chosen = self._dispatcher.next_step(now, step)
        if chosen is None:
            return
        self._chosen = chosen
        self._started_s = now
        self._trained_s = now + self.recorder.train_s(chosen)
        due = (step + 1) % self.job.publish_every == 0 or step + 1 == self.job.num_steps
        self._at(self._trained_s + (self.job.trainer_costs.publish_s if due else 0.0), _TRAINED, int(due))

    def _publish(self, now: float, due: int) -> None:
        """A version is made; it is announced where it is one of those that are published."""
        step = self._step
        if due:
            self.version = step + 1
            self._dispatcher.announced(now, self.version)
            if self.job.notice_s:
                self._at(now + self.job.notice_s, _HEARD)
            else:
                self._hear(now)
        covers = (step + 1) % self.job.checkpoint_every == 0 or step + 1 == self.job.num_steps
        self._at(now + (self.job.trainer_costs.checkpoint_s if covers else 0.0), _COMMITTED, int(covers))

    def _commit(self, now: float, covers: int) -> None:
        assert self._chosen is not None
        self.recorder.step(self._step, self._started_s, self._trained_s, now, self._chosen)
        step, self._step, self._chosen = self._step, self._step + 1, None
        self._dispatcher.trained(now, step, covers=bool(covers))
