"""The contract of a user's function, without processes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_rollout.rewards.function import FunctionReward, checked_rewards, function_arguments
from drumroll_rollout.rewards.rewards import Batch

from drumroll.errors import RewardError


@pytest.mark.parametrize(
    ("value", "came"),
    [
        ([1.0], "returned 1: [1.0]"),
        ([1.0] * 5, "returned 5: [1.0, 1.0, 1.0, 1.0, 1.0]"),
        (np.ones((4, 1)), r"an array of shape (4, 1)"),
        (np.float32(1.0), "an array of shape ()"),
        (1.0, "returned float 1.0"),
        (None, "returned NoneType None"),
        ("1111", "returned str '1111'"),
        ({"a": 1}, "returned dict {'a': 1}"),
        (["1", 1, 1, 1], "returned str '1' at position 0"),
        ([1, 1, float("nan"), 1], "returned float nan at position 2"),
        ([1, 1, 1, float("inf")], "returned float inf at position 3"),
        ([10**400, 1, 1, 1], "int 1000"),
        ([np.ones(1)] * 4, "an array of shape (1,) at position 0"),
    ],
)
def test_r6_other_shapes_are_refused_with_name_expectation_and_what_came(value: Any, came: str) -> None:
    with pytest.raises(RewardError) as caught:
        checked_rewards("mine:score", value, expected=4)
    assert "mine:score must return a list of 4 numbers" in str(caught.value)
    assert came in str(caught.value)


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        ([True, False, True, True], [1.0, 0.0, 1.0, 1.0]),
        ([np.float32(0.5), np.float64(1), np.int64(2), np.bool_(True)], [0.5, 1.0, 2.0, 1.0]),
        (np.array([1, 2, 3, 4]), [1.0, 2.0, 3.0, 4.0]),
        ((1, 2.5, None, -1), [1.0, 2.5, None, -1.0]),
    ],
)
def test_r6_booleans_and_numpy_scalars_are_numbers(value: Any, rewards: list[float | None]) -> None:
    assert checked_rewards("mine:score", value, expected=4) == rewards


def _batch(prompts: list[Any], **columns: list[Any]) -> Batch:
    inputs = [
        {"prompt": prompt} | {name: values[i] for name, values in columns.items()} for i, prompt in enumerate(prompts)
    ]
    return Batch(prompts, [f"c{i}" for i in range(len(prompts))], [[i] for i in range(len(prompts))], inputs)


def test_completions_are_conversational_where_prompts_are() -> None:
    chat = [{"role": "user", "content": "q"}]
    arguments = function_arguments(_batch([chat, "text"], answer=["1", "2"]))
    assert arguments == {
        "prompts": [chat, "text"],
        "completions": [[{"role": "assistant", "content": "c0"}], "c1"],
        "completion_ids": [[0], [1]],
        "answer": ["1", "2"],
    }


def test_a_function_gets_the_parameters_that_it_names() -> None:
    seen: dict[str, Any] = {}

    def score(completions: list[str], *, answer: list[str], weight: float = 2.0) -> list[float]:
        seen.update(answer=answer)
        return [weight] * len(completions)

    assert (
        FunctionReward("m:score", score).score(_batch(["a", "b"], answer=["1", "2"], other=[0, 0]))
        == [(2.0, {"unscored": 0.0})] * 2
    )
    assert seen == {"answer": ["1", "2"]}


def test_a_parameter_that_no_column_provides_is_named() -> None:
    def score(completions: list[str], tests: list[str], **columns: Any) -> list[float]:
        return [0.0]

    with pytest.raises(
        RewardError, match="m:score asks for 'tests', which no column provides; there are 'answer', 'prompts'"
    ):
        FunctionReward("m:score", score).score(_batch(["a"], answer=["1"]))


def test_none_is_no_reward_and_counted() -> None:
    def score(completions: list[str], **columns: Any) -> list[float | None]:
        return [None, 1.0]

    assert FunctionReward("m:score", score).score(_batch(["a", "b"])) == [
        (0.0, {"unscored": 1.0}),
        (1.0, {"unscored": 0.0}),
    ]


def test_a_function_without_a_readable_signature_gets_everything() -> None:
    with pytest.raises(TypeError):
        FunctionReward("m:score", dict.fromkeys).score(_batch(["a"]))


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: list[str] = []

    def write(name: str, source: str) -> None:
        names.append(name)
        (tmp_path / f"{name}.py").write_text(source)

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        (
            "absent_module",
            None,
            "there is no module 'absent_module' in /jobs nor on PYTHONPATH; put absent_module.py beside",
        ),
        ("needs_absent", "import absent_library", "it needs 'absent_library', which is not installed"),
        ("raises", "raise SystemExit('no licence')", "does not import: SystemExit: no licence"),
        ("broken", "def score(:", "does not import: SyntaxError"),
        ("nameless", "other = 1", "has no 'score'; write module:function"),
        ("constant", "score = 1", "has a int, not a function, 'score'"),
    ],
)
def test_a_function_that_cannot_be_loaded_says_why(
    beside: Callable[[str, str], None], name: str, source: str | None, message: str
) -> None:
    if source is not None:
        beside(name, source)
    with pytest.raises(RewardError) as caught:
        FunctionReward.load(f"{name}:score", source_dir="/jobs")
    assert f"reward.function {name}:score" in str(caught.value)
    assert message in str(caught.value)


def _all_named(
    prompts: Any, completions: Any, completion_ids: Any, trainer_state: Any, log_extra: Any, log_metric: Any
) -> Any:
    return _logged(completions, trainer_state, log_extra, log_metric)


def _optional(completions: Any, log_extra: Any = None, log_metric: Any = None, **kwargs: Any) -> Any:
    return _logged(completions, kwargs["trainer_state"], log_extra, log_metric)


def _any(completions: Any, **kwargs: Any) -> Any:
    return _logged(completions, kwargs["trainer_state"], kwargs["log_extra"], kwargs["log_metric"])


def _logged(completions: Any, trainer_state: Any, log_extra: Any, log_metric: Any) -> Any:
    assert trainer_state is None
    log_extra("extracted", ["?"] * len(completions))
    log_metric("accuracy", np.float32(0.5))
    return [1.0, None]


@pytest.mark.parametrize("function", [_all_named, _optional, _any])
def test_what_trls_trainer_gives_is_given_here_too(function: Callable[..., Any]) -> None:
    reward = FunctionReward("m:score", function)
    for _ in range(2):
        assert reward.score(_batch(["a", "b"], answer=["1", "2"])) == [
            (1.0, {"accuracy": 0.5, "unscored": 0.0}),
            (0.0, {"accuracy": 0.5, "unscored": 1.0}),
        ]


def test_a_column_of_such_a_name_is_the_column() -> None:
    def score(completions: Any, log_extra: Any, **columns: Any) -> Any:
        return log_extra

    assert FunctionReward("m:score", score).score(_batch(["a"], log_extra=[0.25])) == [(0.25, {"unscored": 0.0})]


@pytest.mark.parametrize("value", [float("nan"), None, "1", [1.0]])
def test_a_metric_that_is_no_number_is_refused(value: Any) -> None:
    def score(completions: Any, log_metric: Any) -> Any:
        log_metric("accuracy", value)

    with pytest.raises(RewardError, match=r"m:score: log_metric\('accuracy'\) takes a number, not"):
        FunctionReward("m:score", score).score(_batch(["a"]))
