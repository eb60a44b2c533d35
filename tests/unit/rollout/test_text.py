"""Text for rewards: special tokens are left out; both ways of loading a tokenizer give the same text."""

import json
from pathlib import Path

import pytest
from drumroll_rollout.engine_choice import vocabulary_size
from drumroll_rollout.text import load_decoder

from drumroll.errors import JobError


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1} | {chr(97 + number): number + 2 for number in range(26)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.save_pretrained(tmp_path)
    return tmp_path


def test_special_tokens_are_left_out(model_dir: Path) -> None:
    assert load_decoder(model_dir)([2, 3, 4, 1]) == "abc"


def test_transformers_is_used_where_the_tokenizer_asks_for_changes_of_the_text(model_dir: Path) -> None:
    config = json.loads((model_dir / "tokenizer_config.json").read_text())
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config | {"clean_up_tokenization_spaces": True}))
    assert load_decoder(model_dir)([2, 3, 4, 1]) == "abc"


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"model\.path: .* has no tokenizer"):
        load_decoder(tmp_path)


def test_the_vocabulary_comes_from_the_models_config(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="has no vocab_size"):
        vocabulary_size(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 99}}))
    assert vocabulary_size(tmp_path) == 99
