"""What is noted of answers, what a plan's process is told, and planned against actual."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_planner import records as r
from drumroll_planner.asp import AspPlanner, FleetModel, planfile
from drumroll_planner.costs import CostModel
from drumroll_planner.lengths import Outlook, log
from drumroll_planner.lengths.outlook import NORMAL_SHAPE
from drumroll_planner.plan import PassInputs
from drumroll_planner.planners import build_planner
from drumroll_planner.policy import Policy
from drumroll_planner.speeds import Speeds
from drumroll_planner.tickets import Ticket, new_samples
from drumroll_scheduler import plan_process
from drumroll_scheduler.planned import PassWatch
from drumroll_scheduler.planning import PassPlanner, PlanSettings, describe_fleet
from drumroll_scheduler.rules import rules_of
from drumroll_scheduler.scripted_job import scripted_job
from drumroll_scheduler.trainer_costs import TrainerCosts

TOKENS = np.full(16, 3, np.int32)


class Bench:
    """A policy with one replica, and the planner that watches it."""

    def __init__(self, directory: Path, *, learns: bool = True, spec: dict[str, Any] | None = None) -> None:
        self.job = scripted_job(directory, store_url="redis://x", store_passwords={}, port=1, spec=spec)
        self.rules = rules_of(self.job, 16)
        self.policy = Policy(self.rules, incarnation=1)
        self.now = 0.0
        self.journaled: dict[int, r.PassPlanned] = {}
        plans_dir = Path(self.job.layout.job_dir) / "plans"
        self.planner = PassPlanner(
            planner=build_planner("asp"),
            settings=PlanSettings(seed=0, learns=learns, plans_dir=plans_dir, job_file=directory / "job.json"),
            prompt_tokens=TOKENS,
            clock=lambda: self.now,
            journaled=self.journaled.get,
        )

    def take(self, *records: r.Record) -> None:
        for record in records:
            self.planner.observe(self.policy.state, record)
            if isinstance(record, r.PassPlanned):
                self.journaled[record.epoch] = record
            self.policy.apply(record)

    def start(self) -> None:
        plan = self.planner.plan(0)
        assert plan is not None
        self.take(*self.policy.add_plan(plan))  # type: ignore[arg-type]
        self.take(r.Announced(0, 0, 0, "m", "w"), *self.policy.register_replica(0.0, "rollout-0", "i", 64))
        self.take(*self.policy.heartbeat(0.0, "rollout-0", "i", {}, 0, False).records)
        self.policy.ask(0.0, "rollout-0", "i", 64, "q")
        self.take(*self.policy.assign(0.0).records)

    def accept(self, lease: Any, tokens: int, *, finished: bool = True) -> None:
        entry = f"{tokens}-{lease.index}"
        self.take(
            r.Accepted(lease.lease_id, lease.ticket, lease.index, 0, entry, b"s" * 32, 9, 0, 0, tokens, 0.5, finished)
        )

    @property
    def answers(self) -> Any:
        return log.decode((self.planner.settings.plans_dir / "answers.log").read_bytes())


def test_lengths_of_decided_steps_are_noted_with_their_cuts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start()
    for lease in list(bench.policy.state.leases.values()):
        bench.accept(lease, 10 + lease.index, finished=lease.index == 0)
    bench.take(*bench.policy.tick(1.0))
    found = bench.answers
    assert len(found) == 2
    groups = log.groups_of(found)
    assert groups.lengths.tolist() == [[10.0, 11.0], [10.0, 11.0]]
    assert groups.censored.tolist() == [[False, True], [False, True]]
    assert groups.rewards.tolist() == [0.5, 0.5]
    assert bench.planner.gauges()["plan_groups_logged"] == 2.0


def test_a_group_that_is_given_up_counts_as_at_least_as_long_as_its_siblings(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start()
    lease = next(iter(bench.policy.state.leases.values()))
    bench.accept(lease, 40)
    bench.take(r.Ended(r.TicketEnd.DROPPED, "too old", (r.EndedTicket(lease.ticket, 40),)))
    groups = log.groups_of(bench.answers)
    assert groups.lengths.tolist() == [[40.0, 40.0]]
    assert sorted(groups.censored[0].tolist()) == [False, True]


def test_a_job_without_a_length_model_notes_nothing_and_shuffles(tmp_path: Path) -> None:
    bench = Bench(tmp_path, learns=False)
    bench.start()
    for lease in list(bench.policy.state.leases.values()):
        bench.accept(lease, 10)
    bench.take(*bench.policy.tick(1.0))
    assert not bench.planner.settings.plans_dir.exists()
    assert bench.planner.plan(1) is not None


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    Path(bench.job.layout.job_dir).parent.mkdir(parents=True, exist_ok=True)
    Path(bench.job.layout.job_dir).write_text("a file where a folder should be")
    bench.start()
    for lease in list(bench.policy.state.leases.values()):
        bench.accept(lease, 10)
    bench.take(*bench.policy.tick(1.0))
    assert bench.planner.gauges()["plan_groups_logged"] == 0.0


def test_a_pass_waits_for_its_plan_and_is_shuffled_if_none_comes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start()
    for lease in list(bench.policy.state.leases.values()):
        bench.accept(lease, 10)
    bench.take(*bench.policy.tick(1.0))
    assert bench.planner.plan(1) is None
    assert bench.planner.work.is_set()
    bench.now = 1000.0
    plan = bench.planner.plan(1)
    assert plan is not None
    assert [note.reason for note in bench.planner.notes()] == ["PlanFailed"]
    assert bench.planner.notes() == []


def test_a_damaged_plan_file_of_a_shuffle_is_made_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan = bench.planner.plan(0)
    assert plan is not None
    bench.journaled[0] = r.PassPlanned(0, len(plan), plan.digest, plan.planner)
    bench.planner.settings.plans_dir.mkdir(parents=True)
    (bench.planner.settings.plans_dir / planfile.file_name(plan.digest)).write_bytes(b"broken")
    again = bench.planner.plan(0)
    assert again is not None
    assert again.digest == plan.digest


def test_planned_and_actual_are_told_at_the_next_plan(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    watch = PassWatch()
    assert watch.gauges() == {}
    rng = np.random.default_rng(0)
    mean = rng.normal(5, 1, 64).astype(np.float32)
    outlook = Outlook(mean, mean * 0, mean * 0 + 0.1, 4096, NORMAL_SHAPE)
    planner = AspPlanner(rules=bench.rules, fleet=FleetModel((CostModel(step_s=0.01),)))
    prompts = np.full(64, 3, np.int32)
    plan = planner.plan(PassInputs(1, 64, 0, prompts, np.zeros(0, np.float32), outlook))
    watch.planned(plan, 0.0)
    assert [note.reason for note in watch.notes()] == ["PassPlanned"]
    state = bench.policy.state
    ticket = Ticket(r.TicketId(1, 0), 0, 100, new_samples(2))
    state.tickets[ticket.id] = ticket
    samples = tuple(r.DecidedSample(index, 0, "1-0", b"s" * 32, 0, 110) for index in range(2))
    watch.decided(state, r.Decided(0, 0, 0, (r.DecidedTicket(ticket.id, 0, samples),), 0, "c"))
    for step in range(3):
        watch.trained(r.Trained(step, step + 1, "c"), 10.0 * step)
    gauges = watch.gauges()
    assert gauges["plan_actual_iteration_s"] == 10.0
    assert gauges["plan_length_bias"] == pytest.approx(np.log(1.1))
    watch.planned(planner.plan(PassInputs(2, 64, 0, prompts, np.zeros(0, np.float32))), 30.0)
    told = [note.message for note in watch.notes() if note.reason == "PlanChecked"]
    assert len(told) == 1
    assert "answers were 10% longer than predicted" in told[0]


def test_the_trainers_figures_become_costs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start()
    for lease in list(bench.policy.state.leases.values()):
        bench.accept(lease, 10)
    bench.take(*bench.policy.tick(1.0))
    chain = bench.policy.state.chains[0]
    bench.take(r.Trained(0, 1, chain, {"timing_s/train": 2.0, "timing_s/read": 0.5, "timing_s/publish": 0.25}))
    costs = bench.planner.costs
    assert (costs.tokens, costs.train_s, costs.publish_s) == (40.0, 2.5, 0.25)
    bench.take(r.Trained(1, 2, "other", {}))
    fleet = describe_fleet(bench.policy.state, Speeds(), costs)
    assert fleet["factors"] == [1.0]
    assert fleet["max_concurrent"] == 64
    model = plan_process.fleet_of(bench.job, {**fleet, "step_s": [0.02, 0.001]})
    assert model.costs[0].train_token_s == pytest.approx(2.5 / 40)
    assert (model.costs[0].step_s, model.costs[0].sequence_s) == (0.02, 0.001)


def test_costs_of_a_file_come_before_what_was_measured(tmp_path: Path) -> None:
    given = CostModel(name="given", step_s=0.5, train_step_s=1.0)
    (tmp_path / "costs.json").write_text(given.to_json())
    bench = Bench(tmp_path, spec={"scheduler": {"costs": "costs.json"}})
    fleet = describe_fleet(bench.policy.state, Speeds(), TrainerCosts(1.0, 10.0, 5.0, 1.0))
    assert plan_process.fleet_of(bench.job, fleet).costs[0] == given


def test_the_plans_process_writes_the_plan_and_says_where(tmp_path: Path) -> None:
    bench = Bench(tmp_path, spec={"steps": None, "epochs": 2})
    job_file = tmp_path / "job.json"
    job_file.write_text(bench.job.to_json())
    folder = bench.planner.settings.plans_dir
    folder.mkdir(parents=True)
    lines = [
        log.encode(row, row // 2, reward=0.0, answers=[(5 + row, False), (6 + row, False)], group_size=2)
        for row in range(16)
    ]
    (folder / "answers.log").write_bytes(log.head(2) + b"".join(lines))
    fleet = describe_fleet(bench.policy.state, Speeds(), TrainerCosts())
    (folder / "fleet.json").write_text(json.dumps(fleet))
    path = plan_process.main(str(job_file), "1")
    plan = planfile.read(Path(path))
    assert plan.epoch == 1
    assert sorted(plan.rows) == list(range(16))
    assert plan.explanation.lengths is not None
    assert plan.explanation.lengths.num_answers == 32
    assert plan_process.main(str(job_file), "1") == path


def test_levels_are_read_from_numbers_and_words() -> None:
    assert [plan_process._number(value) for value in (3, "4", "Level 5", "hard", None)] == [3.0, 4.0, 5.0, None, None]
