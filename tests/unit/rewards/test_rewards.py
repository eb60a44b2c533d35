"""exact and tasks, and what reward processes are told."""

import re
from collections.abc import Callable

import pytest
from drumroll_rollout.rewards.exact import ExactReward, accepted_answers, extract
from drumroll_rollout.rewards.results import ScoreResult
from drumroll_rollout.rewards.rewards import Batch
from drumroll_rollout.rewards.scorer import apply_require_stop
from drumroll_rollout.rewards.setup import WorkerSetup, worker_environment, worker_setup
from drumroll_rollout.rewards.tasks import TaskReward, extract_answer

from drumroll.api.spec import RLJobSpec


@pytest.mark.parametrize(
    ("text", "pattern", "answer"),
    [
        (" Oslo \n", None, "Oslo"),
        ("a=1 b=2", r"=(\d)", "2"),
        ("a=1 b=2", r"\d", "2"),
        ("nothing", r"=(\d)", None),
        ("x", r"x|(y)", None),
    ],
)
def test_exact_takes_the_whole_text_or_the_last_match(text: str, pattern: str | None, answer: str | None) -> None:
    assert extract(text, None if pattern is None else re.compile(pattern)) == answer


def test_exact_compares_with_every_accepted_answer_as_text() -> None:
    assert accepted_answers([1, " b ", None]) == ["1", "b"]
    batch = Batch(
        ["q"] * 4,
        ["5", "6", "", "b"],
        [[]] * 4,
        [{"answer": 5}, {"answer": 5}, {"answer": None}, {"answer": ["a", "b"]}],
    )
    assert [reward for reward, _ in ExactReward(None).score(batch)] == [1.0, 0.0, 0.0, 1.0]


def test_tasks_are_scored_by_their_own_data_set() -> None:
    task = {"name": "leg_counting", "seed": 1, "size": 3, "config": {}, "index": 0}
    inputs = [{"metadata": {"task": task}}] * 3
    batch = Batch(["q"] * 3, ["<answer>1</answer> no <answer> 292 </answer>", "292", "293"], [[]] * 3, inputs)
    scores = [reward for reward, _ in TaskReward().score(batch)]
    assert scores[:2] == [1.0, 1.0]
    assert scores[2] < 1.0
    assert extract_answer("<answer>a</answer>") == "a"


def test_a_cut_completion_gets_nothing_where_the_end_is_required() -> None:
    results = [ScoreResult(1.0, {"unscored": 0.0}), ScoreResult(1.0, {})]
    assert apply_require_stop(results, [True, False]) == [
        ScoreResult(1.0, {"unscored": 0.0, "cut": 0.0}),
        ScoreResult(0.0, {"cut": 1.0}),
    ]


def test_a_reward_process_sees_harmless_variables_and_those_that_the_job_names() -> None:
    environment = {
        "PATH": "p",
        "LC_ALL": "C",
        "AWS_SECRET_ACCESS_KEY": "s",
        "DRUMROLL_JOB": "j",
        "JUDGE_KEY": "k",
        "HF_TOKEN": "t",
    }
    seen = worker_environment(environment, ["JUDGE_KEY", "DRUMROLL_JOB"])
    assert seen == {"PATH": "p", "LC_ALL": "C", "JUDGE_KEY": "k"}


def test_the_setup_of_a_job_goes_to_the_process_and_back(spec: Callable[..., RLJobSpec]) -> None:
    job = spec({"type": "function", "function": "m:f", "memory": "1Gi"}, env=[{"name": "A", "value": "1"}])
    setup = worker_setup(job, "/jobs")
    assert setup == WorkerSetup("function", "/jobs", 1 << 30, "m:f", None, ("A",))
    assert WorkerSetup.from_message(setup.to_message()) == setup
