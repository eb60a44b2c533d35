"""Who sees which GPU."""

import pytest
from drumroll_cli.local.gpus import assign
from drumroll_cli.local.podspec import Container, LocalPod
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import UserError


def pods(trainer: int, rollouts: list[int]) -> list[LocalPod]:
    def pod(name: str, role: str, count: int) -> LocalPod:
        return LocalPod(name, role, (), Container(role, ("x",), {}, {}, count, None), (), "Always", 1.0)

    computing = [pod(f"rollout-{i}", "rollout", count) for i, count in enumerate(rollouts)]
    return [pod("store", "store", 0), *computing, pod("trainer-0", "trainer", trainer)]


def test_without_a_gpu_all_run_on_cpus() -> None:
    assert set(assign(pods(4, [1, 1]), []).values()) == {""}


def test_the_trainer_comes_first_and_the_store_gets_none() -> None:
    given_ = assign(pods(2, [1, 1]), ["0", "1", "2", "3"])
    assert given_ == {"store": "", "trainer-0": "0,1", "rollout-0": "2", "rollout-1": "3"}


def test_who_asks_for_none_gets_one_where_any_is_left() -> None:
    given_ = assign(pods(0, [0, 2]), ["4", "5", "6", "7"])
    assert given_ == {"store": "", "trainer-0": "4", "rollout-0": "5", "rollout-1": "6,7"}


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match=r"asks for 5 GPUs .* has 4"):
        assign(pods(4, [1]), ["0", "1", "2", "3"])


def test_a_role_left_without_any_is_refused() -> None:
    with pytest.raises(UserError, match="no GPU is left for rollout-1"):
        assign(pods(0, [0, 0]), ["0", "1"])


@given(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 12))
def test_no_gpu_is_given_twice_and_each_wish_is_kept(trainer: int, rollouts: list[int], count: int) -> None:
    all_pods = pods(trainer, rollouts)
    try:
        result = assign(all_pods, [str(i) for i in range(count)])
    except UserError:
        return
    handed = [gpu for value in result.values() for gpu in value.split(",") if gpu]
    assert len(handed) == len(set(handed))
    for pod in all_pods:
        assert len([gpu for gpu in result[pod.name].split(",") if gpu]) >= pod.container.gpus
