"""The whole way from a job to a prepared data set."""

import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumroll.api.spec import RLJobSpec
from drumroll.data import DatasetInfo, PreparedDataset, check, describe_difference, prepare
from drumroll.errors import CorruptError, DataError, JobError

CASES = Path(__file__).parent / "cases"
Job = Callable[..., RLJobSpec]
Write = Callable[..., Path]


def _case(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / name).read_text().splitlines()]


@pytest.fixture
def prepared(tmp_path: Path, model_dir: Path) -> Callable[[RLJobSpec], PreparedDataset]:
    def make(spec: RLJobSpec) -> PreparedDataset:
        out = tmp_path / "data"
        prepare(spec, model_dir=model_dir, source_dir=tmp_path, out_dir=out)
        return PreparedDataset.open(out, "train")

    return make


def test_d2_parquet_and_jsonl_give_the_same_tokens_and_no_empty_tools_block(
    job: Job, prepared: Callable[[RLJobSpec], PreparedDataset], write_parquet: Write
) -> None:
    from_jsonl = prepared(job(CASES / "D2_chat_rows.jsonl", reward="exact"))
    from_parquet = prepared(job(write_parquet(_case("D2_chat_rows.jsonl")), reward="exact"))
    for row in range(3):
        assert from_jsonl.prompt_ids(row) == from_parquet.prompt_ids(row)
    assert ["<tools>" in from_parquet.prompt_text(row) for row in range(3)] == [False, True, False]
    assert '"required": ["place"]' in from_parquet.prompt_text(1)


def test_d6_bad_rows_are_named_with_column_and_count_and_nothing_is_written(
    job: Job, model_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    with pytest.raises(DataError) as caught:
        prepare(
            job(CASES / "D6_null_prompts.jsonl", reward="math"), model_dir=model_dir, source_dir=tmp_path, out_dir=out
        )
    text = str(caught.value)
    assert "6 of 7 rows cannot be used" in text
    for row, column in ((2, "prompt"), (3, "prompt"), (4, "prompt"), (5, "answer"), (6, "answer"), (7, "answer")):
        assert f"row {row}, column {column!r}" in text
    assert "'prompt' 3, 'answer' 3" in text
    assert not out.exists()


def test_d6_a_data_set_of_null_prompts_only_is_refused(
    job: Job, model_dir: Path, tmp_path: Path, write_parquet: Write
) -> None:
    path = write_parquet([{"prompt": None, "answer": "1"}, {"prompt": None, "answer": "2"}])
    with pytest.raises(DataError, match=r"2 of 2 rows cannot be used:\n  row 1, column 'prompt': is null"):
        check(job(path), model_dir=model_dir, source_dir=tmp_path)


def test_d8_a_reward_sees_each_rows_own_metadata(
    job: Job, prepared: Callable[[RLJobSpec], PreparedDataset], write_parquet: Write
) -> None:
    rows = _case("D8_uneven_metadata.jsonl")
    from_jsonl = prepared(job(CASES / "D8_uneven_metadata.jsonl"))
    assert [from_jsonl.reward_inputs(row)["metadata"] for row in range(4)] == [row["metadata"] for row in rows]
    from_parquet = prepared(job(write_parquet(rows[:3])))
    assert [from_parquet.reward_inputs(row)["metadata"] for row in range(3)] == [row["metadata"] for row in rows[:3]]


def test_d8_text_becomes_a_mapping_only_where_the_key_map_says_json(
    job: Job, prepared: Callable[[RLJobSpec], PreparedDataset]
) -> None:
    data = prepared(job(CASES / "D8_uneven_metadata.jsonl", columns={"jsonColumns": ["metadata"]}))
    assert data.reward_inputs(3)["metadata"] == {"city": "Bergen"}


def test_t6_a_base_model_with_chat_prompts_is_refused(job: Job, base_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"row 1 has chat messages .* set model\.chatTemplate"):
        check(job(CASES / "D2_chat_rows.jsonl"), model_dir=base_model_dir, source_dir=tmp_path)
    (tmp_path / "chat.jinja").write_text("{{ messages[-1].content }}")
    spec = job(CASES / "D2_chat_rows.jsonl", model={"chatTemplate": "chat.jinja"})
    assert check(spec, model_dir=base_model_dir, source_dir=tmp_path).num_prompts == 3


def _info(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write, rows: list[dict[str, Any]], **job_options: Any
) -> DatasetInfo:
    return check(job(write_jsonl(rows), **job_options), model_dir=model_dir, source_dir=tmp_path)


def test_w6_another_longer_or_reordered_data_file_is_told_apart(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    rows = [{"prompt": f"{n}+1?", "label": str(n + 1)} for n in range(8)]
    first = _info(job, model_dir, tmp_path, write_jsonl, rows)
    assert describe_difference(first, _info(job, model_dir, tmp_path, write_jsonl, rows)) is None
    others = {
        "3 rows": [{"prompt": f"{n}*2?", "label": str(2 * n)} for n in range(3)],
        "9 rows": [*rows, {"prompt": "8+1?", "label": "9"}],
        "8 rows": rows[::-1],
    }
    for count, other_rows in others.items():
        other = _info(job, model_dir, tmp_path, write_jsonl, other_rows)
        text = describe_difference(first, other)
        assert text is not None
        assert f"8 rows with digest {first.digest[:16]}" in text
        assert f"{count} with digest {other.digest[:16]}" in text


def test_w6_a_changed_answer_eval_set_or_tokenizer_is_a_difference_too(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    rows = [{"prompt": "1+1?", "label": "2"}]
    path, held_out = write_jsonl(rows), write_jsonl(rows, "test.jsonl")
    both = check(job(path, eval=held_out), model_dir=model_dir, source_dir=tmp_path)
    other_eval = check(job(path, eval=write_jsonl(rows * 2, "other.jsonl")), model_dir=model_dir, source_dir=tmp_path)
    alone = check(job(path), model_dir=model_dir, source_dir=tmp_path)
    assert "data.eval was 1 rows" in str(describe_difference(both, other_eval))
    assert "is now unset" in str(describe_difference(both, alone))
    assert "data.eval was unset" in str(describe_difference(alone, both))
    assert describe_difference(both, both) is None
    changed = _info(job, model_dir, tmp_path, write_jsonl, [{"prompt": "1+1?", "label": "3"}])
    assert describe_difference(alone, changed) is not None
    model = tmp_path / "model"
    shutil.copytree(model_dir, model)
    (model / "special_tokens_map.json").write_text("{}")
    other = check(job(path), model_dir=model, source_dir=tmp_path)
    assert "the tokenizer was" in str(describe_difference(alone, other))


def test_a_prepared_data_set_holds_every_row_in_order(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    rows = [{"prompt": "x" * (n + 1), "label": n, "extra": n if n else None, "data_source": "s"} for n in range(4)]
    out = tmp_path / "data"
    info = prepare(
        job(write_jsonl(rows), eval=write_jsonl(rows[:2], "e.jsonl")),
        model_dir=model_dir,
        source_dir=tmp_path,
        out_dir=out,
    )
    data, held_out = PreparedDataset.open(out, "train"), PreparedDataset.open(out, "eval")
    assert (len(data), len(held_out)) == (4, 2)
    assert data.prompt_tokens().dtype == np.int32
    assert data.prompt_tokens().tolist() == [1, 2, 3, 4] == [len(data.prompt_ids(row)) for row in range(4)]
    assert data.reward_inputs(3) == {
        "prompt": "xxxx",
        "label": 3,
        "extra": 3,
        "data_source": "s",
        "answer": 3,
        "metadata": None,
    }
    assert data.source_row(3) == 4
    assert (info.min_prompt_tokens, info.mean_prompt_tokens, info.max_prompt_tokens) == (1, 2.5, 4)
    assert info.eval == held_out.info
    assert data.info.digest == info.digest
    assert info.layout == "slime"
    assert DatasetInfo.load(out) == info
    with pytest.raises(IndexError, match="row 4 of 4"):
        data.prompt_ids(4)


def test_a_column_that_only_other_rows_have_is_none_for_the_reward(
    job: Job, prepared: Callable[[RLJobSpec], PreparedDataset], write_jsonl: Write
) -> None:
    data = prepared(job(write_jsonl([{"prompt": "a", "x": 1}, {"prompt": "b", "y": 2}])))
    assert data.reward_inputs(0) == {
        "prompt": "a",
        "x": 1,
        "y": None,
        "data_source": None,
        "answer": None,
        "metadata": None,
    }


def test_preparing_twice_gives_the_same_digest(job: Job, model_dir: Path, tmp_path: Path, write_parquet: Write) -> None:
    """The same rows from another kind of file are the same data set."""
    rows = _case("D8_uneven_metadata.jsonl")[:3]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = check(job(tmp_path / "rows.jsonl"), model_dir=model_dir, source_dir=tmp_path)
    second = check(job(write_parquet(rows)), model_dir=model_dir, source_dir=tmp_path)
    assert first.digest == second.digest


def test_too_long_prompts_are_an_error_with_the_length_to_set(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    path = write_jsonl([{"prompt": "x" * n} for n in (3, 9, 5)])
    with pytest.raises(DataError) as caught:
        check(job(path, maxPromptTokens=4), model_dir=model_dir, source_dir=tmp_path)
    text = str(caught.value)
    assert "row 2, column 'prompt': has 9 tokens, over data.maxPromptTokens: 4" in text
    assert "Set data.maxPromptTokens to 9, or data.overlongPrompts to skip" in text


def test_too_long_prompts_may_be_skipped_but_not_all(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl([{"prompt": "x" * n} for n in (3, 9, 5)])
    out = tmp_path / "data"
    with caplog.at_level(logging.WARNING):
        info = prepare(
            job(path, maxPromptTokens=5, overlongPrompts="skip"), model_dir=model_dir, source_dir=tmp_path, out_dir=out
        )
    assert (info.num_prompts, info.skipped_rows) == (2, 1)
    assert "1 of 3 prompts are over 5 tokens" in caplog.text
    assert PreparedDataset.open(out, "train").source_row(1) == 3
    with pytest.raises(DataError, match="3 of 3 rows cannot be used"):
        check(job(path, maxPromptTokens=1, overlongPrompts="skip"), model_dir=model_dir, source_dir=tmp_path)


def test_only_the_first_prompts_are_used_where_so_many_are_asked_for(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    path = write_jsonl([{"prompt": "a"}, {"prompt": "b"}, {"prompt": None}])
    assert check(job(path, maxPrompts=2), model_dir=model_dir, source_dir=tmp_path).num_prompts == 2


def test_a_data_set_without_answers_is_refused_where_the_reward_compares(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    path = write_jsonl([{"prompt": "a", "hint": "b"}])
    with pytest.raises(
        DataError, match=r"reward\.type math compares with an answer.*no answer column among 'prompt', 'hint'"
    ):
        check(job(path, reward="math"), model_dir=model_dir, source_dir=tmp_path)


def test_a_template_that_refuses_rows_names_them(job: Job, base_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ raise_exception('never') }}")
    spec = job(CASES / "D2_chat_rows.jsonl", model={"chatTemplate": "chat.jinja"})
    with pytest.raises(DataError, match=r"3 of 3 rows .*\n  row 1, column 'prompt': is refused by the chat template"):
        check(spec, model_dir=base_model_dir, source_dir=tmp_path)


def test_a_model_without_end_token_is_told(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with caplog.at_level(logging.WARNING):
        info = check(job(write_jsonl([{"prompt": "a"}])), model_dir=model, source_dir=tmp_path)
    assert info.eos_token_ids == ()
    assert info.pad_token_id == 0
    assert "has no end token" in caplog.text


def test_a_prepared_data_set_that_is_not_whole_is_refused(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    out = tmp_path / "data"
    with pytest.raises(CorruptError, match=r"dataset\.json is not a prepared data set"):
        PreparedDataset.open(out, "train")
    prepare(job(write_jsonl([{"prompt": "a"}])), model_dir=model_dir, source_dir=tmp_path, out_dir=out)
    with pytest.raises(CorruptError, match="has no eval data set"):
        PreparedDataset.open(out, "eval")
    info = json.loads((out / "dataset.json").read_text())
    (out / "dataset.json").write_text(json.dumps(info | {"num_prompts": 2}))
    with pytest.raises(CorruptError, match=r"has 1 rows, dataset\.json says 2"):
        PreparedDataset.open(out, "train")
    (out / "train.arrow").write_bytes(b"nonsense")
    with pytest.raises(CorruptError, match=r"train\.arrow is not a prepared data set"):
        PreparedDataset.open(out, "train")


def test_a_place_that_cannot_be_written_is_a_clear_error(
    job: Job, model_dir: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DataError, match="the prepared data set cannot be written"):
        prepare(
            job(write_jsonl([{"prompt": "a"}])), model_dir=model_dir, source_dir=tmp_path, out_dir=tmp_path / "data"
        )


def test_generated_tasks_are_prompts_and_chat_where_the_model_has_a_template(
    job: Job, model_dir: Path, base_model_dir: Path, tmp_path: Path
) -> None:
    tasks = [{"name": "leg_counting", "size": 3, "seed": 5}, {"name": "basic_arithmetic", "size": 2}]
    spec = job(None, reward="tasks", tasks=tasks, maxPrompts=4)
    out = tmp_path / "data"
    info = prepare(spec, model_dir=model_dir, source_dir=tmp_path, out_dir=out)
    data = PreparedDataset.open(out, "train")
    assert (info.num_prompts, info.layout) == (4, "tasks")
    assert data.prompt_text(0).endswith("<assistant>")
    inputs = data.reward_inputs(3)
    assert inputs["data_source"] == "reasoning-gym/basic_arithmetic"
    assert inputs["metadata"] == {"task": {"name": "basic_arithmetic", "seed": 0, "size": 2, "config": {}, "index": 0}}
    prepare(spec, model_dir=base_model_dir, source_dir=tmp_path, out_dir=out)
    assert "<assistant>" not in PreparedDataset.open(out, "train").prompt_text(0)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"name": "leg_countin"},
            r"data\.train\.tasks\[0\]\.name: .* no task 'leg_countin'; near ones are leg_counting",
        ),
        ({"name": "zzzzzzzz"}, "no task 'zzzzzzzz'$"),
        (
            {"name": "leg_counting", "config": {"legs": 3}},
            r"tasks\[0\]\.config: reasoning-gym refuses it for 'leg_counting'",
        ),
    ],
)
def test_an_unknown_task_or_parameter_is_refused(
    job: Job, model_dir: Path, tmp_path: Path, task: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        check(job(None, reward="tasks", tasks=[task]), model_dir=model_dir, source_dir=tmp_path)


def test_generated_tasks_without_their_package_say_what_is_missing(
    job: Job, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(JobError, match="generated tasks need the package reasoning-gym"):
        check(job(None, reward="tasks", tasks=[{"name": "leg_counting"}]), model_dir=model_dir, source_dir=tmp_path)


def test_an_answer_inside_a_json_column_is_found_and_given_to_the_reward(
    prepared: Callable[[RLJobSpec], PreparedDataset], job: Job, write_jsonl: Write
) -> None:
    path = write_jsonl([{"prompt": "1+1?", "reward_model": '{"ground_truth": "2"}'}])
    data = prepared(job(path, columns={"jsonColumns": ["reward_model"]}))
    assert data.info.layout == "verl"
    assert data.reward_inputs(0)["answer"] == "2"
    assert data.reward_inputs(0)["reward_model"] == {"ground_truth": "2"}


def test_a_reward_function_gets_all_columns_that_could_hold_the_answer_by_name(
    prepared: Callable[[RLJobSpec], PreparedDataset], job: Job, write_jsonl: Write
) -> None:
    row = {"prompt": "1+1?", "solution": "one and one is 2", "answer": "2"}
    inputs = prepared(job(write_jsonl([row]))).reward_inputs(0)
    assert (inputs["answer"], inputs["solution"]) == ("2", "one and one is 2")
    del row["answer"]
    inputs = prepared(job(write_jsonl([row | {"label": "2"}]))).reward_inputs(0)
    assert (inputs["answer"], inputs["solution"], inputs["label"]) == (None, "one and one is 2", "2")
    with pytest.raises(DataError, match="could each hold the answer"):
        prepared(job(write_jsonl([row | {"label": "2"}]), reward="math"))
