"""`python -m drumroll_trainer` with one and two ranks, on a real store and real gRPC."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from drumroll_proto.v1 import scheduler_pb2
from drumroll_trainer.checkpoints import CheckpointStore
from drumroll_trainer.fake_scheduler import FakeScheduler
from drumroll_trainer.learner import checkpoint
from drumroll_trainer.learner.crew import Crew
from drumroll_trainer.learner.fsdp import World as Ranks
from drumroll_trainer.learner.learner import Learner
from drumroll_trainer.rehearsal import make_job, make_trainer
from drumroll_trainer.stopping import EXIT_TERMINATED
from safetensors.torch import load_file

from drumroll.errors import EXIT_FENCED, EXIT_INTERNAL, EXIT_USER
from drumroll.job import ResolvedJob
from drumroll.testing import eventually
from drumroll.weights import WeightStore

MakeWorld = Callable[..., Awaitable[Any]]
CrewOf = Callable[[ResolvedJob], Crew]


WAIT = scheduler_pb2.NextStepReply(outcome=scheduler_pb2.NEXT_STEP_OUTCOME_WAIT)


def weights(job: ResolvedJob, version: int) -> dict[str, torch.Tensor]:
    path = WeightStore(job.layout.weights_dir, job.uid).path(version)
    return dict(load_file(path / "model.safetensors"))


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


class Hold:
    """Makes the trainer wait before a step."""

    def __init__(self, scheduler: FakeScheduler, step: int) -> None:
        self.reached = False
        self._step = step
        scheduler.on_next_step = self._answer

    def _answer(self, request: scheduler_pb2.NextStepRequest) -> scheduler_pb2.NextStepReply | None:
        if request.step < self._step:
            return None
        self.reached = True
        return WAIT


async def test_two_ranks_take_the_steps_of_one_and_resume_bit_equal_n2(
    make_world: MakeWorld, tmp_path: Path, crew_of: CrewOf, llama_dir: Path
) -> None:
    world = await make_world("two")
    scheduler = world.scheduler
    hold = Hold(scheduler, 3)
    ranks = await world.start(2)
    await eventually(lambda: hold.reached, 200.0, "two ranks that wait before step 3")
    for process in ranks:
        process.kill()
    for process in ranks:
        await process.wait()
    scheduler.on_next_step = None
    assert await world.run(2) == [0, 0], world.log
    # The checkpoint was of step 2: step 2 was taken again, and its version compared with the published one.
    assert scheduler.registered[-1].step == 2
    assert sorted(scheduler.announced) == [0, 1, 2, 3, 4]
    assert scheduler.diverged == []

    alone = FakeScheduler(world.plan.steps, checkpoint_every=2)
    job = make_job(tmp_path / "one", llama_dir, algorithm={"learningRate": 1e-3})
    await make_trainer(job, crew_of(job), alone, world.plan).run()
    assert difference(weights(job, 0), weights(job, 4)) > 1e-3
    assert difference(weights(job, 4), weights(world.job, 4)) < 1e-5
    for step in range(4):
        for name in ("tokens/trained", "reward/mean", "policy_lag/mean"):
            assert alone.trained[step][name] == scheduler.trained[step][name]
        norms = alone.trained[step]["actor/grad_norm"], scheduler.trained[step]["actor/grad_norm"]
        assert abs(norms[0] - norms[1]) < 1e-4

    # What two ranks saved, one can load.
    newest = CheckpointStore(world.job.layout.checkpoints_dir).newest()
    assert newest is not None
    assert newest.state.world_size == 2
    learner = Learner(world.job, Ranks(0, 1, torch.device("cpu")))
    learner.restore(newest.path)
    held = checkpoint.tensors_of(learner.policy, learner.optimizer)
    assert all(torch.equal(held[f"model.{name}"], tensor) for name, tensor in weights(world.job, 4).items())


async def test_sigterm_ends_a_trainer_and_a_successor_goes_on(make_world: MakeWorld) -> None:
    world = await make_world("term")
    hold = Hold(world.scheduler, 3)
    (process,) = await world.start(1)
    await eventually(lambda: hold.reached, 200.0, "a trainer that waits")
    process.terminate()
    assert await process.wait() == EXIT_TERMINATED, world.log
    assert "Traceback" not in world.log
    world.scheduler.on_next_step = None
    assert await world.run(1) == [0], world.log
    assert world.scheduler.registered[-1].step == 2
    assert world.scheduler.diverged == []


async def test_exit_codes_say_whose_fault_it_is(make_world: MakeWorld) -> None:
    world = await make_world("faults")

    def successor(request: scheduler_pb2.AnnounceRequest) -> None:
        world.scheduler.epoch += 1

    world.scheduler.on_announce = successor
    assert await world.run(1) == [EXIT_FENCED], world.log
    world.scheduler.on_announce = None
    world.scheduler.failure = "the last word"
    assert await world.run(1) == [EXIT_INTERNAL]
    assert "JobFailed: the last word" in world.log
    (Path(world.job.layout.job_dir) / "empty").mkdir()
    layout = world.job.layout.model_copy(update={"model_dir": str(Path(world.job.layout.job_dir) / "empty")})
    world.job = world.job.model_copy(update={"layout": layout})
    assert await world.run(1) == [EXIT_USER]
    assert "model.path" in world.log
    assert "secret" not in world.log
