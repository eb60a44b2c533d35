import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from drumroll_planner import records as r
from drumroll_trainer.decisions import sample_keys
from drumroll_trainer.fake_samples import FakePlan, FakeShape, decided_sample, make_payload, make_plan
from drumroll_trainer.learner import checkpoint
from drumroll_trainer.learner.crew import Crew
from drumroll_trainer.learner.fsdp import World
from drumroll_trainer.learner.learner import Learner
from drumroll_trainer.learner.optimizer import learning_rate
from drumroll_trainer.publisher import Publisher
from drumroll_trainer.rehearsal import PROBE, make_job
from safetensors.torch import load_file

from drumroll.errors import CorruptError
from drumroll.job import ResolvedJob
from drumroll.samples import encode
from drumroll.weights import WeightStore

ALONE = World(0, 1, torch.device("cpu"))


class MakesFolder:
    """Pickles to a call of os.mkdir."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def learner_of(job: ResolvedJob) -> Learner:
    learner = Learner(job, ALONE)
    learner.restore(None)
    return learner


def take(learner: Learner, job: ResolvedJob, plan: FakePlan, step: int, *, mask_below: int = 0) -> dict[str, float]:
    decision = r.Decided(step, step, 0, plan.steps[step], mask_below, "")
    return Crew(learner, job).train(decision, [plan.entries[s.entry_id] for _, s in sample_keys(decision)])


def parameters(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in learner.policy.own_parameters()}


def test_steps_are_the_same_bit_for_bit_after_a_checkpoint_w4(tmp_path: Path, llama_dir: Path) -> None:
    job = make_job(tmp_path / "job", llama_dir, algorithm={"warmupSteps": 3})
    plan = make_plan(FakeShape(num_steps=4))
    first = learner_of(job)
    for step in range(2):
        take(first, job, plan, step)
    first.save(tmp_path / "saved")
    saved = {k: t.clone() for k, t in checkpoint.tensors_of(first.policy, first.optimizer).items()}
    rates = [take(first, job, plan, step)["actor/lr"] for step in (2, 3)]

    second = Learner(job, ALONE)
    second.restore(tmp_path / "saved")
    restored = checkpoint.tensors_of(second.policy, second.optimizer)
    assert restored.keys() == saved.keys()
    assert all(torch.equal(restored[name], saved[name]) for name in saved)
    assert any(name.endswith("exp_avg_sq") and tensor.any() for name, tensor in restored.items())
    assert [take(second, job, plan, step)["actor/lr"] for step in (2, 3)] == rates
    assert all(torch.equal(value, parameters(second)[name]) for name, value in parameters(first).items())


def test_learning_rate_rises_over_the_warm_up(tmp_path: Path, llama_dir: Path) -> None:
    algorithm = make_job(tmp_path, llama_dir, algorithm={"warmupSteps": 4, "learningRate": 0.1}).spec.algorithm
    assert [learning_rate(algorithm, step) for step in range(6)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("budget", [24, 30, 500])
def test_gradient_accumulation_is_exact_n2(tmp_path: Path, llama_dir: Path, budget: int) -> None:
    plan = make_plan(FakeShape(num_steps=1, prompts_per_step=6))
    whole, cut = make_job(tmp_path, llama_dir, budget=500), make_job(tmp_path, llama_dir, budget=budget)
    one, other = learner_of(whole), learner_of(cut)
    # One step of plain descent shows the gradient itself; Adam's first step would show its sign alone.
    for learner, job in ((one, whole), (other, cut)):
        stats = take(learner, job, plan, 0)
        assert stats["micro_batches"] == (
            1 if job.spec.trainer.max_tokens_per_micro_batch == 500 else stats["micro_batches"]
        )
    moments = [checkpoint.tensors_of(learner.policy, learner.optimizer) for learner in (one, other)]
    for name in moments[0]:
        if name.endswith("exp_avg"):
            assert torch.allclose(moments[0][name], moments[1][name], atol=1e-7), name


def test_fresh_weights_give_ratio_one_whatever_the_micro_batch_n8_v2(tmp_path: Path, gpt2_dir: Path) -> None:
    for temperature in (0.6, 1.0, 1.4):
        for budget in (24, 500):
            job = make_job(tmp_path, gpt2_dir, budget=budget, algorithm={"learningRate": 1e-9})
            learner = learner_of(job)
            steps, entries = on_policy_plan(learner, temperature)
            stats = take(learner, job, FakePlan((steps,), entries), 0)
            assert stats["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-4)
            assert stats["rollout_corr/rollout_is_max"] == pytest.approx(1.0, abs=1e-4)
            assert stats["mismatch/logprob_abs_same_version"] < 1e-4


def on_policy_plan(learner: Learner, temperature: float) -> tuple[tuple[r.DecidedTicket, ...], dict[str, bytes]]:
    """Two groups whose log-probabilities are the model's own at `temperature`."""
    plan = make_plan(FakeShape(num_steps=1, temperature=temperature))
    tickets, entries = [], {}
    for ticket in plan.steps[0]:
        samples = []
        for sample in ticket.samples:
            prompt, completion = [3, 4, 5 + ticket.ticket.ordinal], list(range(6, 9 + sample.index))
            tokens = torch.tensor(prompt + completion)
            places = torch.arange(2, len(tokens) - 1)
            with torch.no_grad():
                logprobs, _ = learner.policy(
                    tokens,
                    torch.arange(len(tokens)),
                    (len(tokens),),
                    places,
                    tokens[places + 1],
                    torch.full((len(places),), temperature),
                )
            payload = make_payload(
                prompt_ids=prompt,
                completion_ids=completion,
                logprobs=logprobs.tolist(),
                versions=[0] * len(completion),
                reward=float(sample.index),
                temperature=temperature,
            )
            entries[sample.entry_id] = data = encode(payload)
            samples.append(
                decided_sample(data, entry_id=sample.entry_id, index=sample.index, num_tokens=len(completion))
            )
        tickets.append(r.DecidedTicket(ticket.ticket, ticket.row, tuple(samples)))
    return tuple(tickets), entries


def test_rewarded_answers_become_likelier(tmp_path: Path, llama_dir: Path) -> None:
    job = make_job(tmp_path, llama_dir, algorithm={"learningRate": 1e-3})
    learner = learner_of(job)
    steps, entries = on_policy_plan(learner, 1.0)
    before = learner.probe([3, 4, 5, 6, 7, 8, 9])
    for _ in range(3):
        take(learner, job, FakePlan((steps,), entries), 0)
    after = learner.probe([3, 4, 5, 6, 7, 8, 9])
    assert after[-1] > before[-1]


def test_a_step_without_a_trainable_token_changes_nothing(tmp_path: Path, llama_dir: Path) -> None:
    job = make_job(tmp_path, llama_dir)
    learner = learner_of(job)
    plan = make_plan(FakeShape(num_steps=2))
    take(learner, job, plan, 0)
    before = parameters(learner)
    stats = take(learner, job, plan, 1, mask_below=99)
    assert stats["tokens/trained"] == 0
    assert stats["tokens/masked"] > 0
    assert all(torch.equal(value, before[name]) for name, value in parameters(learner).items())


def test_the_kl_term_is_zero_at_the_starting_model_and_grows(tmp_path: Path, llama_dir: Path) -> None:
    job = make_job(tmp_path, llama_dir, algorithm={"klCoef": 0.1, "learningRate": 1e-3})
    learner = learner_of(job)
    plan = make_plan(FakeShape(num_steps=2, prompts_per_step=4))
    assert take(learner, job, plan, 0)["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert take(learner, job, plan, 1)["actor/kl_loss"] > 1e-6


def test_a_pickle_in_place_of_the_index_is_refused_by_name_s2(tmp_path: Path, llama_dir: Path) -> None:
    learner = learner_of(make_job(tmp_path, llama_dir))
    learner.save(tmp_path / "saved")
    victim = tmp_path / "made-by-the-pickle"
    (tmp_path / "saved" / checkpoint.INDEX).write_bytes(pickle.dumps(MakesFolder(victim)))
    with pytest.raises(CorruptError, match=r"\.metadata: it asks for posix\.mkdir"):
        learner.restore(tmp_path / "saved")
    assert not victim.exists()


def test_a_pickle_in_place_of_the_optimizer_is_refused_by_name_s2(tmp_path: Path, llama_dir: Path) -> None:
    learner = learner_of(make_job(tmp_path, llama_dir))
    learner.save(tmp_path / "saved")
    victim = tmp_path / "made-by-the-pickle"
    for whole in (False, True):
        evil = tmp_path / "evil.pt"
        torch.save(MakesFolder(victim), evil)
        data = evil.read_bytes() if whole else pickle.dumps(MakesFolder(victim), protocol=2)
        (tmp_path / "saved" / "__0_0.distcp").write_bytes(data)
        with pytest.raises(CorruptError, match=r"__0_0\.distcp does not hold the tensors"):
            learner.restore(tmp_path / "saved")
    assert not victim.exists()


def test_an_object_in_the_index_is_refused_s2(tmp_path: Path, llama_dir: Path) -> None:
    learner = learner_of(make_job(tmp_path, llama_dir))
    state: dict[str, object] = {"model.evil": MakesFolder(tmp_path / "made")}
    checkpoint.save(tmp_path / "saved", {**state, "model.a": torch.ones(2)})  # type: ignore[dict-item]
    with pytest.raises(CorruptError, match="BytesStorageMetadata"):
        learner.restore(tmp_path / "saved")
    assert not (tmp_path / "made").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, llama_dir: Path, gpt2_dir: Path) -> None:
    learner_of(make_job(tmp_path, gpt2_dir)).save(tmp_path / "saved")
    with pytest.raises(CorruptError, match="saved is refused"):
        learner_of(make_job(tmp_path, llama_dir)).restore(tmp_path / "saved")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_is_published_has_the_jobs_dtype_and_the_checkpoint_float32_w8(
    tmp_path: Path, llama_dir: Path, dtype: str
) -> None:
    job = make_job(tmp_path / "job", llama_dir, dtype=dtype)
    learner = learner_of(job)
    # An integer buffer, such as some models keep, must come out as it is.
    learner.policy.language_model.register_buffer("table", torch.arange(5))
    before = parameters(learner)
    store = WeightStore(job.layout.weights_dir, job.uid)
    publisher = Publisher(job, Crew(learner, job), probe_token_ids=PROBE, tokenizer_digest="t", store=store)
    publication = publisher.publish(version=0, step=0, lineage=0)

    manifest = store.verify(0, publication.announced.manifest_sha256)
    directory = store.path(0)
    tensors = load_file(directory / "model.safetensors")
    kinds = {name: tensor.dtype for name, tensor in tensors.items()}
    assert kinds.pop("table") == torch.int64
    assert set(kinds.values()) == {getattr(torch, dtype)}
    assert json.loads((directory / "config.json").read_text())["dtype"] == dtype
    size = sum(t.numel() for t in before.values()) * getattr(torch, dtype).itemsize
    assert sum(t.nbytes for name, t in tensors.items() if name != "table") == size
    assert publication.announced.weights_digest == manifest.weights_digest
    assert manifest.probe is not None
    assert manifest.probe.token_ids == PROBE

    # Publishing and probing leave the masters alone.
    assert all(torch.equal(value, before[name]) for name, value in parameters(learner).items())
    assert {t.dtype for t in checkpoint.tensors_of(learner.policy, learner.optimizer).values()} == {torch.float32}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_probe_is_what_the_published_directory_says(tmp_path: Path, gpt2_dir: Path, dtype: str) -> None:
    from transformers import AutoModelForCausalLM

    job = make_job(tmp_path / "job", gpt2_dir, dtype=dtype)
    learner = learner_of(job)
    store = WeightStore(job.layout.weights_dir, job.uid)
    publisher = Publisher(job, Crew(learner, job), probe_token_ids=PROBE, tokenizer_digest="t", store=store)
    found = publisher.publish(version=0, step=0, lineage=0)
    probe = store.verify(0, found.announced.manifest_sha256).probe
    assert probe is not None
    published = AutoModelForCausalLM.from_pretrained(store.path(0), dtype=torch.float32).eval()
    with torch.no_grad():
        logits = published(torch.tensor([PROBE])).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(PROBE[1:]).unsqueeze(1)).squeeze(1)
    assert probe.worst_difference(expected.tolist()) < 1e-4


def test_publishing_again_writes_nothing_and_tells_a_difference(tmp_path: Path, llama_dir: Path) -> None:
    job = make_job(tmp_path / "job", llama_dir)
    learner = learner_of(job)
    crew = Crew(learner, job)
    publisher = Publisher(job, crew, probe_token_ids=PROBE, tokenizer_digest="t")
    first = publisher.publish(version=0, step=0, lineage=0)
    assert publisher.publish(version=0, step=0, lineage=0) == first
    take(learner, job, make_plan(FakeShape(num_steps=1)), 0)
    again = publisher.publish(version=0, step=0, lineage=0)
    assert again.announced == first.announced
    assert again.diverged is not None
    assert again.diverged.expected == first.announced.weights_digest
    assert again.diverged.actual == crew.export().weights_digest
    publisher.release([0])
    assert not publisher.has(0)
