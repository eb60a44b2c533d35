"""Templates and token ids."""

import json
from pathlib import Path

import pytest

from drumroll.data.checks import Example, Problem
from drumroll.data.prompts import EncodedPrompt, PromptEncoder, tokenizer_digest
from drumroll.errors import JobError


def _example(prompt: object, tools: object = None, row: int = 1) -> Example:
    return Example(row, prompt, None, tools, None, {})  # type: ignore[arg-type]


def _text(encoder: PromptEncoder, prompt: object, tools: object = None) -> str:
    (found,) = encoder.encode([_example(prompt, tools)], column="prompt")
    assert isinstance(found, EncodedPrompt)
    return found.text


USER = {"role": "user", "content": "2+2?"}


def test_t6_chat_prompts_without_a_template_are_refused_with_what_to_set(base_model_dir: Path) -> None:
    encoder = PromptEncoder.load(base_model_dir)
    with pytest.raises(JobError) as caught:
        encoder.encode([_example("text"), _example([USER], row=2)], column="prompt")
    assert str(base_model_dir) in str(caught.value)
    assert "row 2" in str(caught.value)
    assert "set model.chatTemplate" in str(caught.value)


def test_t6_text_prompts_need_no_template(base_model_dir: Path) -> None:
    encoder = PromptEncoder.load(base_model_dir)
    (found,) = encoder.encode([_example("2+2?")], column="prompt")
    assert isinstance(found, EncodedPrompt)
    assert found.text == "2+2?"
    assert len(found.token_ids) == 4


def test_t6_a_prompt_that_ends_with_an_assistant_message_is_continued(model_dir: Path) -> None:
    encoder = PromptEncoder.load(model_dir)
    assert _text(encoder, [USER]) == "<user>2+2?</user><assistant>"
    started = _text(encoder, [USER, {"role": "assistant", "content": "It is"}])
    assert started == "<user>2+2?</user><assistant>It is"
    (found,) = encoder.encode([_example([USER, {"role": "assistant", "content": ""}])], column="prompt")
    assert found == Problem(1, "prompt", "ends with an assistant message without text, which cannot be continued")


def test_tools_reach_the_template_and_none_render_no_block(model_dir: Path) -> None:
    encoder = PromptEncoder.load(model_dir)
    assert _text(encoder, [USER], [{"name": "f"}]).startswith('<tools>[{"name": "f"}]</tools><user>')
    assert "tools" not in _text(encoder, [USER])


def test_text_prompts_get_the_tokenizers_own_begin_token_once(begin_model_dir: Path) -> None:
    encoder = PromptEncoder.load(begin_model_dir)
    plain, marked = encoder.encode([_example("hi"), _example("<bos>hi")], column="prompt")
    assert isinstance(plain, EncodedPrompt)
    assert isinstance(marked, EncodedPrompt)
    assert plain.token_ids == marked.token_ids
    assert plain.token_ids[0] == 3
    assert 1 not in plain.token_ids


def test_a_template_file_replaces_the_models_own(base_model_dir: Path, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}!")
    encoder = PromptEncoder.load(base_model_dir, chat_template=template)
    assert encoder.has_template
    assert _text(encoder, [USER]) == "2+2?!"


def test_a_template_that_refuses_or_says_nothing_is_a_problem_of_the_row(base_model_dir: Path, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}")
    encoder = PromptEncoder.load(base_model_dir, chat_template=template)
    refused, silent = encoder.encode(
        [_example([{"role": "system", "content": "x"}]), _example([USER], row=2)], column="prompt"
    )
    assert refused == Problem(1, "prompt", "is refused by the chat template: TemplateError: no system")
    assert silent == Problem(2, "prompt", "has no tokens in this model's tokenizer")


def test_a_template_file_must_be_readable_and_hold_something(base_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"model\.chatTemplate: .*none\.jinja cannot be read"):
        PromptEncoder.load(base_model_dir, chat_template=tmp_path / "none.jinja")
    (tmp_path / "empty.jinja").write_text("\n")
    with pytest.raises(JobError, match=r"empty\.jinja is empty"):
        PromptEncoder.load(base_model_dir, chat_template=tmp_path / "empty.jinja")


def test_a_model_directory_must_exist_and_hold_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"model\.path: .*none is not a directory"):
        PromptEncoder.load(tmp_path / "none")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(JobError, match="has no tokenizer that transformers can load"):
        PromptEncoder.load(tmp_path)


def test_end_tokens_come_from_the_tokenizer_and_the_model(model_dir: Path, tmp_path: Path) -> None:
    encoder = PromptEncoder.load(model_dir)
    assert encoder.eos_token_ids == (1,)
    assert encoder.pad_token_id == 0
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((model_dir / name).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 9}')
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 1], "temperature": 0.1}))
    encoder = PromptEncoder.load(tmp_path)
    assert encoder.eos_token_ids == (1, 5)
    (tmp_path / "generation_config.json").write_text("{}")
    assert encoder.eos_token_ids == (1, 9)
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(JobError, match=r"generation_config\.json cannot be read"):
        _ = encoder.eos_token_ids
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    assert encoder.eos_token_ids == (1,)


def test_the_tokenizer_digest_changes_with_its_files_alone(
    model_dir: Path, base_model_dir: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_bytes((base_model_dir / name).read_bytes())
    assert tokenizer_digest(tmp_path) == tokenizer_digest(base_model_dir)
    (tmp_path / "config.json").write_text("{}")
    assert tokenizer_digest(tmp_path) == tokenizer_digest(base_model_dir)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_digest(tmp_path) != tokenizer_digest(base_model_dir)
