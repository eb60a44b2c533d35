"""When an ended process is started again."""

import pytest
from drumroll_cli.local.backoff import LONGEST_DELAY_S, MOST_FAILURES, after_exit, describe
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import EXIT_FENCED, EXIT_USER


@given(st.integers(-31, 255).filter(lambda code: code not in (0, EXIT_FENCED, EXIT_USER)), st.integers(1, 50))
def test_a_failure_is_answered_by_a_restart_until_it_is_hopeless(code: int, failures: int) -> None:
    step = after_exit(code, restart="OnFailure", failures=failures, name="part")
    assert step.action == ("restart" if failures < MOST_FAILURES else "give_up")
    assert 0.0 <= step.delay_s <= LONGEST_DELAY_S


def test_delays_double() -> None:
    delays = [after_exit(1, restart="Always", failures=n, name="x").delay_s for n in range(1, MOST_FAILURES)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2]


@pytest.mark.parametrize("restart", ["Always", "OnFailure", "Never"])
def test_a_users_mistake_and_a_successor_end_it(restart: str) -> None:
    assert after_exit(EXIT_USER, restart=restart, failures=1, name="x").action == "give_up"
    assert after_exit(EXIT_FENCED, restart=restart, failures=1, name="x").reason == "x was replaced by a successor"


def test_restart_policies_decide_about_good_ends() -> None:
    assert after_exit(0, restart="OnFailure", failures=0, name="x").action == "done"
    assert after_exit(0, restart="Always", failures=0, name="x").action == "restart"
    assert after_exit(1, restart="Never", failures=1, name="x").action == "give_up"


def test_codes_in_words() -> None:
    assert (describe(-9), describe(3), describe(-40)) == ("signal SIGKILL", "exit code 3", "signal 40")
