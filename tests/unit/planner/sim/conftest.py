"""Jobs to simulate, and an engine that walks every step by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from drumroll_planner.costs import CostModel
from drumroll_planner.plan import PassPlan
from drumroll_planner.policy import Rules
from drumroll_planner.sim import SimJob

COSTS = CostModel(
    table=((1, 0.010), (2, 0.011), (4, 0.012), (8, 0.016)),
    sequence_s=0.0005,
    kv_s=1e-6,
    prefill_s=2e-5,
    prefill_pair_s=1e-9,
    chunk_s=0.001,
    publish_pause_s=0.3,
    train_step_s=0.2,
    train_token_s=2e-4,
    train_padded_s=2e-4,
    publish_s=0.1,
    checkpoint_s=0.5,
)


def make_job(**changes: Any) -> SimJob:
    """A job of 8 steps; keywords are fields of Rules, of SimJob, or of the lengths' family."""
    seed = changes.pop("seed", 0)
    sigma, median, cap = changes.pop("sigma", 0.9), changes.pop("median", 60), changes.pop("cap", 600)
    rules = Rules(
        num_prompts=changes.pop("num_prompts", 32),
        group_size=changes.pop("group_size", 3),
        prompts_per_step=changes.pop("prompts_per_step", 4),
        max_policy_lag=changes.pop("max_policy_lag", 2),
        target_policy_lag=changes.pop("target_policy_lag", 1),
        lag_policy=changes.pop("lag_policy", "wait"),
        steps=changes.pop("steps", None),
        epochs=changes.pop("epochs", 1),
        max_attempts=1000,
        max_failed_tickets=1.0,
        lease_term_s=changes.pop("lease_term_s", 20.0),
        dynamic_sampling=False,
        max_sampling_tries=10,
        order=changes.pop("order", "plan"),
        max_stream_bytes=changes.pop("max_stream_bytes", 10**12),
        keep_versions=2,
    )
    if rules.steps is not None:
        rules = replace(rules, epochs=None)
    size = rules.num_prompts
    generator = np.random.default_rng(seed)
    logs = generator.normal(0, sigma, size)[:, None] + generator.normal(0, sigma / 2, (size, rules.group_size))
    lengths = np.clip(np.exp(np.log(median) + logs), 1, cap).astype(np.int32)
    rows = np.arange(size, dtype=np.int64)
    plan = PassPlan(epoch=0, planner="fifo", rows=rows, tokens=np.zeros(size, np.int32), digest="digest")
    prompts = generator.integers(1, 80, size).astype(np.int32)
    fields: dict[str, Any] = {
        "plan": plan,
        "lengths": lengths,
        "prompt_tokens": prompts,
        "costs": COSTS,
        "num_replicas": 2,
        "max_concurrent": 6,
        "chunk_tokens": 64,
        "checkpoint_every": 3,
    }
    return SimJob(rules=rules, **(fields | changes))


@pytest.fixture(scope="session")
def job_of() -> Callable[..., SimJob]:
    return make_job


@pytest.fixture(scope="session")
def costs() -> CostModel:
    return COSTS


@dataclass(eq=False)
class Walked:
    """A request of the walking engine."""

    arrival: float
    prompt: int
    length: int
    group: object = None
    done: int = 0
    left: int = 0
    ctx: int = 0
    decoding: bool = False
    ended: float = 0.0


@dataclass
class WalkingEngine:
    """What `sim.engine` does in closed form, one step at a time and with every sum made anew."""

    costs: CostModel
    slots: int
    chunk: int
    kv_tokens: int | None = None
    running: list[Walked] = field(default_factory=list)
    waiting: list[Walked] = field(default_factory=list)
    time: float = 0.0
    preemptions: int = 0

    def run(self, requests: list[Walked]) -> None:
        todo = sorted(requests, key=lambda request: request.arrival)
        while todo or self.waiting or self.running:
            while todo and todo[0].arrival <= self.time:
                self.waiting.append(todo.pop(0))
            if not self.waiting and not self.running:
                self.time = todo[0].arrival
                continue
            self._admit()
            if any(not request.decoding for request in self.running):
                while self._growth() > self._free():
                    self._preempt()
                self._step()
            elif self._growth() > self._free():
                self._preempt()
            else:
                self._step()

    def _shared(self, request: Walked) -> int:
        return 0 if request.group is None else (request.prompt - 1) // 16

    def _alive(self, request: Walked) -> bool:
        return request.group is not None and any(other.group == request.group for other in self.running)

    def _free(self) -> float:
        if self.kv_tokens is None:
            return float("inf")
        used = 0
        for request in self.running:
            used += ceil((request.prompt + request.done + (not request.decoding)) / 16) - self._shared(request)
        groups = {request.group: self._shared(request) for request in self.running if request.group is not None}
        return self.kv_tokens // 16 - used - sum(groups.values())

    def _growth(self) -> int:
        return sum(request.decoding and (request.prompt + request.done) % 16 == 0 for request in self.running)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting[0]
            alive = self._alive(request)
            needed = ceil((request.prompt + request.done + 1) / 16) - (self._shared(request) if alive else 0)
            if needed > self._free():
                return
            self.waiting.pop(0)
            request.ctx = self._shared(request) * 16 if alive else 0
            request.left = request.prompt + request.done - request.ctx
            self.running.append(request)

    def _preempt(self) -> None:
        victim = self.running.pop()
        victim.decoding = False
        self.preemptions += 1
        self.waiting.insert(0, victim)

    def _step(self) -> None:
        decoding = [request for request in self.running if request.decoding]
        seconds = self.costs.decode(len(decoding), sum(request.prompt + request.done for request in decoding))
        budget = max(self.chunk, self.slots + 1) - len(decoding)
        first, prefilled = [], False
        for request in [request for request in self.running if not request.decoding]:
            tokens = min(budget, request.left)
            if not tokens:
                break
            prefilled = True
            seconds += self.costs.prefill(tokens, before=request.ctx) - self.costs.chunk_s
            budget -= tokens
            request.left -= tokens
            request.ctx += tokens
            if request.left:
                break
            first.append(request)
        self.time += seconds + (self.costs.chunk_s if prefilled else 0.0)
        for request in [*decoding, *first]:
            request.decoding = True
            request.done += 1
            if request.done == request.length:
                request.ended = self.time
                self.running.remove(request)


@pytest.fixture(scope="session")
def walk() -> Callable[..., WalkingEngine]:
    """Runs (arrival, prompt, length, group) through a walking engine."""

    def run(costs: CostModel, requests: list[Walked], *, slots: int, chunk: int, kv: int | None) -> WalkingEngine:
        engine = WalkingEngine(costs, slots, chunk, kv)
        engine.run(requests)
        return engine

    return run


@pytest.fixture(scope="session")
def walked() -> type[Walked]:
    return Walked
