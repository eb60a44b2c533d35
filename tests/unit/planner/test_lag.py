"""The arithmetic of the lag rule."""

from drumroll_planner.lag import LagWindow, has_credit, may_age, may_leave, may_move, violations
from hypothesis import given
from hypothesis import strategies as st

windows = st.builds(
    LagWindow,
    version=st.integers(0, 12),
    bound=st.integers(0, 5),
    target=st.integers(0, 5),
    free=st.integers(1, 4),
    per_step=st.integers(1, 4),
)
counts = st.dictionaries(st.integers(0, 12), st.integers(1, 9), max_size=6)


def test_no_lease_below_the_floor() -> None:
    window = LagWindow(version=7, bound=2, target=1, free=4, per_step=4)
    assert may_move(window, {}, origin=None, to=5)
    assert not may_move(window, {}, origin=None, to=4)


def test_tickets_of_the_floor_fill_the_step_and_no_more() -> None:
    window = LagWindow(version=7, bound=2, target=1, free=4, per_step=4)
    assert may_move(window, {5: 3}, origin=None, to=5)
    assert not may_move(window, {5: 4}, origin=None, to=5)
    assert may_move(window, {5: 4}, origin=None, to=6)
    assert not may_move(window, {5: 4, 6: 4}, origin=7, to=6)


def test_overdue_tickets_count_as_of_the_floor() -> None:
    window = LagWindow(version=7, bound=2, target=1, free=4, per_step=4)
    assert not may_move(window, {1: 2, 3: 2}, origin=None, to=5)
    assert violations(window, {1: 3, 3: 2}) == (5,)


def test_the_credit_bounds_all_that_is_out() -> None:
    window = LagWindow(version=7, bound=4, target=1, free=4, per_step=4)
    assert has_credit(window, 7)
    assert not has_credit(window, 8)


def test_steps_that_are_decided_and_not_trained_use_credit_too() -> None:
    window = LagWindow(version=7, bound=4, target=1, free=4, per_step=4, pending=1)
    assert has_credit(window, 3)
    assert not has_credit(window, 4)


def test_a_ticket_that_would_begin_on_older_weights_than_the_newest_uses_credit_for_each_version() -> None:
    window = LagWindow(version=7, bound=4, target=2, free=4, per_step=4)
    assert has_credit(window, 7, stale=1)
    assert not has_credit(window, 8, stale=1)
    assert has_credit(window, 3, stale=2)
    assert not has_credit(window, 4, stale=2)


def test_weights_newer_than_the_newest_known_give_no_credit() -> None:
    window = LagWindow(version=7, bound=4, target=1, free=4, per_step=4)
    assert not has_credit(window, 8, stale=-1)


def test_a_ticket_that_is_out_gets_older_weights_only_where_it_could_have_begun_on_them() -> None:
    window = LagWindow(version=7, bound=4, target=2, free=4, per_step=4)
    assert may_age(window, 8, stale=1)
    assert not may_age(window, 9, stale=1)


@given(window=windows, num_out=st.integers(1, 99))
def test_whatever_is_out_goes_on_with_the_newest_weights(window: LagWindow, num_out: int) -> None:
    assert may_age(window, num_out, stale=0)


@given(window=windows, num_out=st.integers(0, 60), stale=st.integers(0, 6))
def test_credit_with_staleness_implies_the_credit_of_the_protocol(window: LagWindow, num_out: int, stale: int) -> None:
    if has_credit(window, num_out, stale=stale):
        assert num_out + 1 <= window.free + window.target * window.per_step


@given(window=windows, out=counts, origin=st.none() | st.integers(0, 12), to=st.integers(0, 12))
def test_an_allowed_move_breaks_nothing_that_held(
    window: LagWindow, out: dict[int, int], origin: int | None, to: int
) -> None:
    if origin is not None:
        out[origin] = out.get(origin, 0) + 1
        to = min(origin, to)
    if not may_move(window, out, origin=origin, to=to):
        return
    before = set(violations(window, out))
    if origin is not None:
        out[origin] -= 1
    out[to] = out.get(to, 0) + 1
    assert set(violations(window, out)) <= before


@given(window=windows, out=counts, data=st.data())
def test_a_step_leaves_a_feasible_window_or_takes_nothing_newer(
    window: LagWindow, out: dict[int, int], data: st.DataObject
) -> None:
    out = {version: count for version, count in out.items() if version <= window.version}
    taken = data.draw(st.sampled_from(sorted(out)) if out else st.just(0))
    if violations(window, out) or not may_leave(window, out, taken):
        return
    later = LagWindow(window.version + 1, window.bound, window.target, window.per_step, window.per_step)
    assert all(version >= taken for version in violations(later, out))
