"""What a status says and when it is written: figures, times, rates, texts, and statuses that others spoiled."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from drumroll_operator.budget import UIDS_KEPT, Budgets, Charge
from drumroll_operator.conditions import CONDITIONS, Said, follow
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.observed import Lag, Observed, PodPhase, PodView
from drumroll_operator.plan import plan
from drumroll_operator.status_reading import read_status
from drumroll_operator.texts import EVENT_BYTES, MESSAGE_CHARACTERS, condition_message, event_note, last_words
from drumroll_operator.verdicts import Cause, Verdict
from drumroll_operator.wanted import Wanted
from hypothesis import given
from hypothesis import strategies as st

from drumroll.api.status import RLJobStatus


def running(**changes: Any) -> Laboratory:
    """A job with all parts ready."""
    lab = Laboratory({**SPEC, "steps": 100, **changes})
    lab.settle()
    return lab


def writes(lab: Laboratory) -> int:
    """Writes of the status so far."""
    return sum(call[:2] == ("patch", "rljobs/status") for call in lab.api.calls)


def observed(lab: Laboratory) -> Observed:
    """What the operator sees now."""
    lab.operator.catch_up()
    seen = lab.operator.observe()
    assert seen is not None
    return seen


# -- when it is written ----------------------------------------------------------------------------------------------


def test_progress_alone_is_written_once_in_ten_seconds() -> None:
    lab = running()
    before = writes(lab)
    for _ in range(60):
        lab.train()
        lab.clock.now += 1.0
        lab.settle()
    assert 5 <= writes(lab) - before <= 6
    assert lab.status.step is not None
    assert lab.status.step >= 50


def test_a_condition_is_written_at_once_and_takes_the_progress_with_it() -> None:
    lab = running()
    lab.clock.now += 1.0
    lab.train()
    lab.kubelet.unready(lab.pod("trainer"))
    lab.operator.catch_up()
    lab.operator.reconcile()
    assert lab.said("TrainerReady") == ("False", "Starting")
    assert lab.status.step == 1


def test_a_plan_that_holds_back_progress_says_when_it_is_due() -> None:
    lab = running()
    lab.clock.now += 4.0
    lab.train()
    todo = lab.plan()
    assert todo.status is None
    assert todo.requeue_s == pytest.approx(6.0)


# -- conditions ------------------------------------------------------------------------------------------------------


def test_all_conditions_are_there_from_the_first_write_on_in_the_order_of_the_contract() -> None:
    lab = Laboratory()
    lab.operator.reconcile()
    assert [condition.type for condition in lab.status.conditions] == list(CONDITIONS)
    lab.settle()
    assert [condition.type for condition in lab.status.conditions] == list(CONDITIONS)


def test_times_change_with_the_status_of_a_condition_alone() -> None:
    start = 1_000.0
    first = follow([], [Said("Ready", "False", "Starting", "a")], generation=1, now=start)
    second = follow(first, [Said("Ready", "False", "NotCreated", "b")], generation=2, now=start + 60)
    assert second[0].last_transition_time == first[0].last_transition_time
    assert second[0].observed_generation == 2
    third = follow(second, [Said("Ready", "True", "Ready")], generation=2, now=start + 90)
    assert third[0].last_transition_time == datetime.fromtimestamp(start + 90, UTC)


def test_the_kubelets_two_words_for_an_image_that_cannot_be_pulled_do_not_alternate() -> None:
    lab = running()
    full = "Failed to pull image x:1: not found"
    seen = observed(lab)
    todo = plan(replace(seen, pods=tuple(_waits(p, "ErrImagePull", full) for p in seen.pods)))
    assert todo.status is not None
    later = replace(seen, now=seen.now + 60.0, job=replace(seen.job, status=todo.status), status_written=seen.now)
    again = plan(replace(later, pods=tuple(_waits(p, "ImagePullBackOff", "Back-off") for p in seen.pods)))
    assert again.status is None


def _waits(pod: PodView, reason: str, message: str) -> PodView:
    if pod.role != "scheduler":
        return pod
    return replace(pod, ready=False, phase=PodPhase.PENDING, waiting=reason, waiting_message=message)


def test_a_stored_status_is_the_same_value_when_it_is_read_again() -> None:
    lab = running()
    lab.train(3)
    lab.clock.now += 60.0
    lab.settle()
    wire = json.loads(json.dumps(lab.status.to_wire()))
    assert RLJobStatus.model_validate(wire) == lab.status == read_status(wire)


# -- figures ---------------------------------------------------------------------------------------------------------


def test_figures_of_a_running_job() -> None:
    lab = running(rollout={"replicas": 3})
    lab.train(10)
    lab.clock.now += 60.0
    lab.settle()
    status = lab.status
    assert (status.step, status.steps, status.version, status.samples) == (10, 100, 10, 40)
    assert status.eta_seconds == 180
    assert status.gpus == 4
    assert status.rollout is not None
    assert (status.rollout.replicas, status.rollout.ready, status.rollout.summary) == (3, 3, "3/3")
    uid = lab.job["metadata"]["uid"]
    assert status.rollout.selector == f"drumroll.dev/job=demo,drumroll.dev/uid={uid},drumroll.dev/role=rollout"
    assert status.message == "10 of 100 steps are done"
    assert status.start_time is not None


def test_pods_that_drain_are_counted_apart() -> None:
    lab = running(rollout={"replicas": 3})
    lab.edit(rollout__replicas=1)
    lab.operator.catch_up()
    lab.operator.reconcile()
    lab.operator.reconcile()
    todo = plan(replace(observed(lab), now=lab.clock.now + 60.0))
    assert todo.status is not None
    assert todo.status.rollout is not None
    assert (todo.status.rollout.replicas, todo.status.rollout.draining) == (1, 2)


def test_a_rewind_takes_no_step_back_in_the_status() -> None:
    lab = running()
    lab.train(9)
    lab.clock.now += 60.0
    lab.settle()
    seen = observed(lab)
    assert seen.progress is not None
    progress = replace(seen.progress, steps_done=4, version=10, samples=0, lag=Lag(0, 0.33333, 2))
    todo = plan(replace(seen, now=seen.now + 60.0, progress=progress))
    assert todo.status is not None
    assert (todo.status.step, todo.status.version, todo.status.samples) == (9, 10, 36)
    assert todo.status.policy_lag is not None
    assert todo.status.policy_lag.mean == 0.333


def test_what_depends_on_the_scheduler_is_held_while_a_new_operator_has_not_heard_it() -> None:
    lab = running()
    lab.clock.now += 60.0
    lab.settle()
    seen = replace(observed(lab), progress=None)
    assert plan(seen).status is None


# -- charges ---------------------------------------------------------------------------------------------------------


def ended(number: int) -> PodView:
    """A replica that failed."""
    return PodView(f"j-rollout-{number}", f"u{number}", "j", "rollout", number, phase=PodPhase.FAILED)


def charges(numbers: range) -> list[Charge]:
    """Their ends."""
    return [Charge(ended(number), Verdict(Cause.CHARGED, "Killed", "x")) for number in numbers]


def test_more_ends_than_find_room_are_charged_once_the_first_are_gone() -> None:
    many = range(UIDS_KEPT + 44)
    present = {f"u{number}" for number in many}
    first = Budgets({}).charge(charges(many), present, Wanted(), 1.0)
    assert first.entries["rollout"].count == UIDS_KEPT
    assert first.charge(charges(many), present, Wanted(), 2.0) == first
    left = {f"u{number}" for number in many if not first.charged(ended(number))}
    second = first.charge(charges(many), left, Wanted(), 3.0)
    assert second.entries["rollout"].count == len(many)
    assert len(second.entries["rollout"].charged_uids) <= UIDS_KEPT


# -- texts -----------------------------------------------------------------------------------------------------------


@given(st.text(max_size=40), st.integers(0, 2_000))
def test_texts_keep_to_their_limits_and_hold_nothing_that_is_refused(text: str, times: int) -> None:
    long = (text + "\x00\ud800\x07") * times
    note, message = event_note(long), condition_message(long)
    assert len(note.encode()) <= EVENT_BYTES
    assert len(message) <= MESSAGE_CHARACTERS
    for said in (note, message):
        said.encode()
        assert all(character >= " " or character in "\n\t" for character in said)


def test_last_words_are_read_from_json_and_from_text() -> None:
    assert last_words('{"phase": "Failed", "reason": "r", "message": "m"}') == "m"
    assert last_words('{"phase": "Failed", "reason": "r"}') == "r"
    assert last_words('{"phase": "Complete", "reason": ""}') == ""
    assert last_words("Traceback\x00\nValueError: x\n") == "Traceback\nValueError: x"
    assert last_words("{not json") == "{not json"


# -- reading ---------------------------------------------------------------------------------------------------------


_FIELDS = st.sampled_from(["phase", "conditions", "step", "trainer", "restarts", "type", "role"])
_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(
    st.recursive(_LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(_FIELDS, x, max_size=4), max_leaves=12)
)
def test_reading_a_status_never_fails(raw: Any) -> None:
    assert isinstance(read_status(raw), RLJobStatus)


def test_what_can_be_read_of_a_status_is_kept() -> None:
    good = {"type": "Failed", "status": "True", "reason": "UserError", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    raw = {"phase": "Sleeping", "conditions": [{"type": "Complete"}, good], "step": -1, "news": 1, "samples": 4}
    status = read_status(raw)
    assert [condition.type for condition in status.conditions] == ["Failed"]
    assert (status.phase, status.step, status.samples) == (None, None, 4)
