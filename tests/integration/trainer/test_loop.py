import hashlib
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from drumroll_planner import records as r
from drumroll_proto.v1 import scheduler_pb2
from drumroll_trainer.archive import archive_path
from drumroll_trainer.checkpoints import CheckpointStore
from drumroll_trainer.decisions import sample_keys
from drumroll_trainer.fake_samples import FakePlan, FakeShape, make_plan
from drumroll_trainer.fake_scheduler import FakeScheduler
from drumroll_trainer.learner.crew import Crew
from drumroll_trainer.loop import Trainer
from drumroll_trainer.rehearsal import make_job, make_trainer
from drumroll_trainer.replay import replay
from drumroll_trainer.sources import MemorySource
from drumroll_trainer.stopping import EXIT_TERMINATED, Stop

from drumroll.errors import CorruptError, Fenced, JobFailed, ProtocolError
from drumroll.job import ResolvedJob
from drumroll.weights import WeightStore

CrewOf = Callable[[ResolvedJob], Crew]


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


@dataclass
class Bench:
    """A job, its scheduler and its samples."""

    job: ResolvedJob
    plan: FakePlan
    scheduler: FakeScheduler
    crew_of: CrewOf

    def trainer(self, source: MemorySource | None = None, stop: Stop | None = None) -> Trainer:
        return make_trainer(self.job, self.crew_of(self.job), self.scheduler, source or self.plan, stop=stop)

    async def run(self, source: MemorySource | None = None) -> Trainer:
        trainer = self.trainer(source)
        await trainer.run()
        return trainer

    async def run_until_killed(self, method: str, call: int) -> None:
        """Run a trainer that dies at the `call`th call of the learner's `method`."""
        crew = self.crew_of(self.job)
        original = getattr(crew, method)
        calls = 0

        def dying(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return original(*arguments)

        setattr(crew, method, dying)
        with pytest.raises(Killed):
            await make_trainer(self.job, crew, self.scheduler, self.plan).run()

    def digests(self) -> dict[int, str]:
        store = WeightStore(self.job.layout.weights_dir, self.job.uid)
        found = {version: store.find(version) for version in store.versions()}
        return {version: weights.weights_digest for version, weights in found.items() if weights}


@pytest.fixture
def bench(tmp_path: Path, llama_dir: Path, crew_of: CrewOf) -> Bench:
    return bench_of(tmp_path, llama_dir, crew_of)


def bench_of(folder: Path, model: Path, crew_of: CrewOf, *, num_steps: int = 6, **job: object) -> Bench:
    plan = make_plan(FakeShape(num_steps=num_steps, prompts_per_step=3))
    snapshot = folder / "ledger.snapshot"
    snapshot.write_bytes(b"what the scheduler knows")
    scheduler = FakeScheduler(plan.steps, snapshot_file=snapshot, checkpoint_every=4)
    made = make_job(folder / "job", model, checkpoint_every=4, **job)  # type: ignore[arg-type]
    return Bench(made, plan, scheduler, crew_of)


async def test_a_run_trains_publishes_covers_and_replays(bench: Bench) -> None:
    await bench.run()
    scheduler = bench.scheduler
    assert sorted(scheduler.trained) == list(range(6))
    assert sorted(scheduler.announced) == list(range(7))
    assert scheduler.covered == [(4, 4, "step_000004"), (6, 6, "step_000006")]
    assert {v: a.weights_digest for v, a in scheduler.announced.items()} == bench.digests()
    newest = CheckpointStore(bench.job.layout.checkpoints_dir).newest()
    assert newest is not None
    assert (newest.path / "ledger.snapshot").read_bytes() == b"what the scheduler knows"
    assert newest.state.chain == scheduler.decided[-1].chain
    for name in ("reward/mean", "policy_lag/mean", "timing_s/train", "perf/throughput", "actor/grad_norm"):
        assert name in scheduler.trained[3]
    report = replay(bench.job, scheduler.decided)
    assert report.equal
    assert [c.what for c in report.comparisons][-2:] == ["weight version 6", "checkpoint step_000006"]


@pytest.mark.parametrize(("method", "calls"), [("train", (5, 2)), ("save", (2, 1)), ("export", (3, 4))])
async def test_a_killed_trainer_ends_bit_equal_to_one_that_was_not(
    tmp_path: Path, llama_dir: Path, crew_of: CrewOf, method: str, calls: tuple[int, ...]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = bench_of(tmp_path / "a", llama_dir, crew_of)
    await whole.run()
    killed = bench_of(tmp_path / "b", llama_dir, crew_of)
    for call in calls:
        await killed.run_until_killed(method, call)
    await killed.run()
    assert killed.digests() == whole.digests()
    assert killed.scheduler.decided == whole.scheduler.decided
    assert killed.scheduler.diverged == []
    assert replay(killed.job, killed.scheduler.decided).equal


@pytest.mark.parametrize("call", [1, 4, 5])
async def test_a_trainer_killed_before_it_could_commit_loses_nothing(bench: Bench, call: int) -> None:
    commits = 0

    def killing(request: scheduler_pb2.CommitRequest) -> None:
        nonlocal commits
        commits += 1
        if commits == call:
            raise Killed

    bench.scheduler.on_commit = killing
    with pytest.raises(Killed):
        await bench.run()
    await bench.run()
    assert sorted(bench.scheduler.trained) == list(range(6))
    assert bench.scheduler.covered[-1] == (6, 6, "step_000006")
    assert bench.scheduler.diverged == []
    assert replay(bench.job, bench.scheduler.decided).equal


async def test_versions_that_exist_are_not_published_again_and_a_difference_is_told(bench: Bench) -> None:
    bench.scheduler.plan = bench.plan.steps[:3]
    await bench.run()
    store = CheckpointStore(bench.job.layout.checkpoints_dir)
    newest = store.newest()
    assert newest is not None
    # Nothing but the starting model is left, and version 2 was made by another history.
    for path in store.root.iterdir():
        (path / "complete.json").unlink()
    weights = WeightStore(bench.job.layout.weights_dir, bench.job.uid)
    weights.delete(2)
    crew = bench.crew_of(bench.job)
    crew.restore(None)
    staging = weights.stage(2)
    crew.export().write(staging)
    foreign = weights.publish(staging, version=2, step=2, lineage=0)
    before = bench.digests()
    await bench.run()
    assert bench.scheduler.diverged == [2]
    assert bench.digests() == before
    assert before[2] == foreign.weights_digest


async def test_samples_gone_from_the_stream_are_read_from_the_archive(bench: Bench) -> None:
    await bench.run_until_killed("train", 3)
    kept = {
        s.entry_id: bench.plan.entries[s.entry_id]
        for tickets in bench.plan.steps[2:]
        for t in tickets
        for s in t.samples
    }
    await bench.run(MemorySource(kept))
    assert bench.scheduler.lost == []
    assert replay(bench.job, bench.scheduler.decided).equal


@pytest.mark.parametrize("damaged", [False, True])
async def test_lost_samples_rewind_to_the_newest_checkpoint_under_a_new_version(
    bench: Bench, caplog: pytest.LogCaptureFixture, damaged: bool
) -> None:
    source = MemorySource(bench.plan.entries)
    (_, first) = sample_keys(r.Decided(5, 0, 0, bench.plan.steps[5], 0, ""))[0]
    whole = source.entries.pop(first.entry_id)
    if damaged:
        source.entries[first.entry_id] = b"not a sample"
    trainer = bench.trainer(source)

    def found_again(request: scheduler_pb2.AnnounceRequest) -> None:
        if request.weights.lineage == 1:
            source.entries[first.entry_id] = whole

    bench.scheduler.on_announce = found_again
    await trainer.run()
    scheduler = bench.scheduler
    assert scheduler.lost == [(5, 1)]
    assert [(d.step, d.version, d.lineage) for d in scheduler.decided][3:] == [(3, 3, 0), (4, 7, 1), (5, 8, 1)]
    assert scheduler.announced[7].weights_digest == scheduler.announced[4].weights_digest
    assert scheduler.covered[-1] == (6, 9, "step_000006")
    assert replay(bench.job, scheduler.decided).equal


async def test_a_sample_that_is_no_sample_is_told_as_lost_though_its_sum_is_right_s2(bench: Bench) -> None:
    poison = pickle.dumps(print)
    tickets = bench.plan.steps[0]
    bad = replace(tickets[0].samples[0], sha256=hashlib.sha256(poison).digest())
    bench.plan.entries[bad.entry_id] = poison
    evil = (replace(tickets[0], samples=(bad, *tickets[0].samples[1:])), *tickets[1:])
    good = bench.scheduler.plan
    bench.scheduler.plan = (evil, *good[1:])

    def refused(request: scheduler_pb2.CommitRequest) -> None:
        if request.lost:
            bench.scheduler.plan = good
            bench.plan.entries.clear()
            bench.plan.entries.update(make_plan(FakeShape(num_steps=6, prompts_per_step=3)).entries)

    bench.scheduler.on_commit = refused
    source = MemorySource({})
    source.entries = bench.plan.entries
    await bench.run(source)
    assert bench.scheduler.lost == [(0, 1)]
    assert sorted(bench.scheduler.trained) == list(range(6))


async def test_a_ledger_that_lost_its_end_is_told_the_decisions(bench: Bench) -> None:
    await bench.run_until_killed("train", 6)
    decided = list(bench.scheduler.decided)
    del bench.scheduler.decided[3:]
    bench.scheduler.plan = [*bench.plan.steps[:3], *reversed(bench.plan.steps[3:])]
    bench.scheduler.plan[5] = bench.plan.steps[5]
    await bench.run()
    assert bench.scheduler.decided[:6] == decided
    assert bench.scheduler.diverged == []


async def test_a_stale_trainer_is_fenced(bench: Bench) -> None:
    trainer = bench.trainer()

    def successor(request: scheduler_pb2.AnnounceRequest) -> None:
        if request.weights.version == 2:
            bench.scheduler.epoch += 1

    bench.scheduler.on_announce = successor
    with pytest.raises(Fenced):
        await trainer.run()


async def test_a_failed_job_ends_the_trainer_with_its_last_word(bench: Bench) -> None:
    bench.scheduler.failure = "40 of 40 groups had equal rewards"
    with pytest.raises(JobFailed, match="40 of 40"):
        await bench.run()


async def test_an_unknown_outcome_is_refused(bench: Bench) -> None:
    strange = scheduler_pb2.NextStepReply(outcome=99)  # type: ignore[arg-type]
    bench.scheduler.on_next_step = lambda request: strange
    with pytest.raises(ProtocolError, match="outcome 99"):
        await bench.run()


async def test_the_newest_version_is_announced_again_to_a_scheduler_that_took_over(bench: Bench) -> None:
    told: list[int] = []
    asked: list[int] = []

    def take_over(request: scheduler_pb2.NextStepRequest) -> scheduler_pb2.NextStepReply | None:
        asked.append(request.step)
        if asked.count(2) not in (1, 2) or request.step != 2:
            return None
        reply = scheduler_pb2.NextStepReply(outcome=scheduler_pb2.NEXT_STEP_OUTCOME_WAIT)
        reply.header.incarnation = 7
        return reply

    bench.scheduler.on_next_step = take_over
    bench.scheduler.on_announce = lambda request: told.append(request.weights.version)
    bench.scheduler.plan = bench.plan.steps[:3]
    await bench.run()
    assert told == [0, 1, 2, 2, 2, 3]


async def test_released_versions_go_and_are_not_published_again_on_resume(bench: Bench) -> None:

    def release(request: scheduler_pb2.AnnounceRequest) -> None:
        bench.scheduler.release = [0, 1] if request.weights.version == 2 else []

    bench.scheduler.on_announce = release
    await bench.run_until_killed("train", 4)
    assert sorted(bench.digests()) == [2, 3]
    await bench.run()
    assert 0 not in bench.digests()


async def test_an_early_checkpoint_is_made_when_the_stream_fills(bench: Bench) -> None:
    bench.scheduler.plan = bench.plan.steps[:3]
    bench.scheduler.checkpoint_now = True
    bench.scheduler.snapshot_file = Path(bench.job.layout.job_dir) / "ledger"
    bench.scheduler.snapshot_file.parent.mkdir(parents=True, exist_ok=True)
    bench.scheduler.snapshot_file.write_bytes(b"ledger")
    await bench.run()
    assert [step for step, _, _ in bench.scheduler.covered] == [1, 2, 3]


async def test_only_every_nth_version_is_published_and_the_last(
    tmp_path: Path, llama_dir: Path, crew_of: CrewOf
) -> None:
    bench = bench_of(tmp_path, llama_dir, crew_of, num_steps=5, weights={"publishEverySteps": 2}, maxPolicyLag=4)
    await bench.run()
    assert sorted(bench.scheduler.announced) == [0, 2, 4, 5]
    assert replay(bench.job, bench.scheduler.decided).equal


async def test_without_an_archive_decisions_are_kept_and_replay_says_why_it_cannot(
    tmp_path: Path, llama_dir: Path, crew_of: CrewOf
) -> None:
    bench = bench_of(tmp_path, llama_dir, crew_of, num_steps=2, stream={"archiveSamples": False})
    await bench.run()
    assert archive_path(bench.job.layout.samples_dir, 0).stat().st_size < 2000
    with pytest.raises(CorruptError, match="archiveSamples is off"):
        replay(bench.job, bench.scheduler.decided)


async def test_replay_finds_the_first_version_that_differs(bench: Bench) -> None:
    await bench.run()
    weights = WeightStore(bench.job.layout.weights_dir, bench.job.uid)
    weights.delete(3)
    crew = bench.crew_of(bench.job)
    crew.restore(None)
    staging = weights.stage(3)
    crew.export().write(staging)
    weights.publish(staging, version=3, step=3, lineage=0)
    difference = replay(bench.job, bench.scheduler.decided).first_difference
    assert difference is not None
    assert difference.what == "weight version 3"


async def test_a_job_that_resumes_from_another_keeps_what_it_began_with(
    tmp_path: Path, llama_dir: Path, crew_of: CrewOf
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = bench_of(tmp_path / "a", llama_dir, crew_of, num_steps=3)
    await first.run()
    second = bench_of(tmp_path / "b", llama_dir, crew_of, num_steps=2, uid="job-2", resumeFrom=str(tmp_path / "a"))
    await second.run()
    assert second.digests()[0] == first.digests()[3]
    assert CheckpointStore(second.job.layout.checkpoints_dir).at(0) is not None
    assert replay(second.job, second.scheduler.decided).equal


async def test_a_stop_that_comes_while_a_step_is_told_waits_for_it(bench: Bench) -> None:
    stop = Stop()
    trainer = bench.trainer(stop=stop)

    def told_to_stop(request: scheduler_pb2.AnnounceRequest) -> None:
        if request.weights.version == 2:
            bench.scheduler.on_announce = None
            stop.request()

    bench.scheduler.on_announce = told_to_stop
    with pytest.raises(SystemExit) as caught:
        await trainer.run()
    assert caught.value.code == EXIT_TERMINATED
    assert sorted(bench.scheduler.trained) == [0, 1]
    await bench.run()
    assert replay(bench.job, bench.scheduler.decided).equal


async def test_half_a_checkpoint_is_passed_over_by_a_real_trainer_w4(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.run()
    last = bench.job.layout.checkpoints_dir / "step_000006" / "__0_0.distcp"
    last.write_bytes(last.read_bytes()[:1000])
    with caplog.at_level(logging.WARNING):
        await bench.run()
    assert "step_000006 is passed over" in caplog.text
    assert bench.scheduler.registered[-1].step == 4
    assert bench.scheduler.diverged == []


async def test_waiting_for_a_step_keeps_the_other_ranks_informed(bench: Bench) -> None:
    idle = 0
    crew = bench.crew_of(bench.job)
    trainer = make_trainer(bench.job, crew, bench.scheduler, bench.plan)

    def count() -> None:
        nonlocal idle
        idle += 1

    def hesitant(request: scheduler_pb2.NextStepRequest) -> scheduler_pb2.NextStepReply | None:
        waiting = scheduler_pb2.NextStepReply(outcome=scheduler_pb2.NEXT_STEP_OUTCOME_WAIT)
        return waiting if idle < 3 else None

    crew.idle = count  # type: ignore[method-assign]
    bench.scheduler.on_next_step = hesitant
    await trainer.run()
    assert idle == 3
