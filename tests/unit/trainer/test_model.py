from pathlib import Path

import pytest
import torch
from drumroll_trainer.learner import model as model_module
from drumroll_trainer.learner.model import PolicyModel, load_policy

from drumroll.errors import JobError

SAMPLE = [5, 9, 7, 33, 12, 40, 2]
NEIGHBOUR = [(11 * i + 4) % 60 for i in range(30)]


def load(directory: Path, *, gradient_checkpointing: bool = False) -> PolicyModel:
    return load_policy(
        directory,
        device=torch.device("cpu"),
        gradient_checkpointing=gradient_checkpointing,
        trust_remote_code=False,
    )


def logprobs(policy: PolicyModel, *sequences: list[int], temperature: float = 1.0) -> list[torch.Tensor]:
    """Log-probabilities of each sequence's tokens but the first, packed together in this order."""
    flat = torch.tensor([token for s in sequences for token in s])
    positions = torch.cat([torch.arange(len(s)) for s in sequences])
    starts = [sum(len(s) for s in sequences[:place]) for place in range(len(sequences))]
    places = torch.tensor([start + i for start, s in zip(starts, sequences, strict=True) for i in range(len(s) - 1)])
    lengths = tuple(len(s) for s in sequences)
    found, _ = policy(flat, positions, lengths, places, flat[places + 1], torch.full((len(places),), temperature))
    return list(torch.split(found, [len(s) - 1 for s in sequences]))


@pytest.mark.parametrize("name", ["gpt2_dir", "llama_dir"])
def test_log_probabilities_do_not_depend_on_neighbours_n8(name: str, request: pytest.FixtureRequest) -> None:
    policy = load(request.getfixturevalue(name))
    (alone,) = logprobs(policy, SAMPLE)
    packings = [logprobs(policy, SAMPLE, NEIGHBOUR)[0], logprobs(policy, NEIGHBOUR, SAMPLE)[1]]
    packings += [logprobs(policy, *[SAMPLE] * 4)[3], logprobs(policy, NEIGHBOUR, SAMPLE, NEIGHBOUR, SAMPLE)[3]]
    for packed in packings:
        assert torch.allclose(packed, alone, atol=1e-5, rtol=0)
        assert torch.allclose((packed - alone).exp(), torch.ones_like(alone), atol=1e-4)


def test_log_probabilities_are_those_of_the_library(gpt2_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(gpt2_dir, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = reference(torch.tensor([SAMPLE])).logits[0, :-1] / 0.7
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(SAMPLE[1:]).unsqueeze(1)).squeeze(1)
    (found,) = logprobs(load(gpt2_dir), SAMPLE, temperature=0.7)
    assert torch.allclose(found, expected, atol=1e-5)


def test_dropout_of_the_configuration_is_off(gpt2_dir: Path) -> None:
    policy = load(gpt2_dir, gradient_checkpointing=True)
    assert policy.language_model.training
    assert torch.equal(logprobs(policy, SAMPLE)[0], logprobs(policy, SAMPLE)[0])


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_chunks_and_recomputation_change_no_gradient(
    llama_dir: Path, monkeypatch: pytest.MonkeyPatch, gradient_checkpointing: bool
) -> None:
    whole, cut = load(llama_dir), load(llama_dir, gradient_checkpointing=gradient_checkpointing)
    logprobs(whole, SAMPLE, NEIGHBOUR)[1].sum().backward()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(model_module, "CHUNK_ELEMENTS", 500)
    logprobs(cut, SAMPLE, NEIGHBOUR)[1].sum().backward()  # type: ignore[no-untyped-call]
    for (name, one), (_, other) in zip(whole.own_parameters(), cut.own_parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        assert torch.allclose(one.grad, other.grad, atol=1e-5), name


def test_sliding_windows_of_a_model_hold(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        initializer_range=0.2,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path / "model")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    with torch.no_grad():
        logits = reference(torch.tensor([NEIGHBOUR])).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(NEIGHBOUR[1:]).unsqueeze(1)).squeeze(1)
    found = logprobs(load(tmp_path / "model"), SAMPLE, NEIGHBOUR)[1]
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_directory_without_a_model_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"model\.path: .* cannot be loaded"):
        load(tmp_path)
