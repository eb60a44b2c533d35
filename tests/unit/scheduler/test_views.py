"""Story, status, metrics rows, rules, snapshots and files: what follows from records, purely."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_planner import records as r
from drumroll_planner.planners import build_planner
from drumroll_scheduler import status
from drumroll_scheduler.app import bind_address
from drumroll_scheduler.archive import read_incarnation, write_incarnation
from drumroll_scheduler.lines import LinesFile, MetricsFile
from drumroll_scheduler.planning import PassPlanner, PlanSettings
from drumroll_scheduler.replies import Replies
from drumroll_scheduler.rules import is_surplus, rules_digest, rules_of, steps_total
from drumroll_scheduler.scripted_job import scripted_job
from drumroll_scheduler.snapshot import CheckpointMark, LedgerSnapshot, compress, decode
from drumroll_scheduler.story import Story
from drumroll_scheduler.timeline import record_row, weights_row
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import CorruptError, DataError


def decided(step: int, *oldest: int, lineage: int = 0) -> r.Decided:
    samples = tuple(r.DecidedSample(i, 0, f"{i}-0", bytes(32), version, 5) for i, version in enumerate(oldest))
    return r.Decided(step, step, lineage, (r.DecidedTicket(r.TicketId(0, step), 0, samples),), 0, f"c{step}")


def told(*records: r.Record) -> Story:
    story = Story()
    for record in records:
        story.apply(record, 1.0)
    return story


def test_a_trained_step_carries_the_lag_of_its_decision() -> None:
    story = told(decided(3, 1, 2, 3), r.Trained(3, 4, "c3", {"loss": float("nan")}))
    row = status.metrics_row(story.recent[-1], {"out": 2.0})
    assert (row["lag_min"], row["lag_mean"], row["lag_max"]) == (0, 1.0, 2)
    assert (row["loss"], row["queue_out"], row["version"]) == (None, 2.0, 4)
    json.dumps(row, allow_nan=False)


def test_a_step_without_a_known_decision_has_no_lag_columns() -> None:
    story = told(r.Trained(3, 4, "c3", {}))
    assert "lag_min" not in status.metrics_row(story.recent[-1], {})


def test_a_rewind_takes_steps_back_and_raises_the_lineage() -> None:
    steps = [record for step in range(4) for record in (decided(step, step), r.Trained(step, step + 1, "c", {}))]
    story = told(*steps, r.Rewound(2, 9, 1, "lost"), decided(2, 9, lineage=1), r.Trained(2, 10, "d", {}))
    assert [(step.step, step.lineage) for step in story.recent] == [(0, 0), (1, 0), (2, 1)]
    assert (story.steps_done, story.steps_decided, story.version, story.lineage) == (3, 3, 10, 1)
    assert story.notes[-1].reason == "Rewound"


EVENTS = [
    r.JobOpened("job-1", "r", "d", 4, 0, "m"),
    r.PassPlanned(0, 4, "p", "asp"),
    r.ReplicaJoined("rollout-0", "a", 4),
    r.Attested("rollout-0", "a", 2),
    r.Attested("stranger", "a", 2),
    r.Leased("1-1", r.LeaseKind.TRAIN, r.TicketId(0, 1), 0, 0, "rollout-0", "a", 2, "q"),
    r.Leased("1-2", r.LeaseKind.TRAIN, r.TicketId(0, 1), 1, 0, "stranger", "a", 2, "q"),
    r.Returned("1-1", r.TicketId(0, 1), 0, r.ReturnReason.EXPIRED, True, None, "no progress on replica rollout-0"),
    r.Returned("1-1", r.TicketId(0, 1), 0, r.ReturnReason.DRAINED, False),
    r.ReplicaLeft("rollout-0", "a", "silent"),
    decided(0, 0, 0),
    r.Trained(0, 1, "c0", {"loss": 1.5}),
    r.Covered(1, 1, 0, "step_000001"),
    r.Announced(1, 1, 0, "m1", "w1"),
    r.Announced(0, 0, 0, "m0", "w0"),
    r.Ended(r.TicketEnd.FAILED, "ticket (0, 5): no progress", ()),
    r.LiveSet("steps", 9),
    r.TrainerRegistered(2, 0),
    r.ReplayDiverged(3, "a", "b"),
    r.Noted("StreamLost", "gone"),
    r.Evaluated(2, 2, 0, 5, 1, 0.5, 0.5, 9.0, True),
    r.Evaluated(4, 4, 0, 0, 0, 0.0, 0.0, 0.0, False),
    r.Rewound(0, 5, 1, "lost"),
    r.JobEnded(r.JobOutcome.FAILED, "40 of 40 groups had equal rewards"),
]


@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_a_story_goes_through_json_unchanged(events: list[r.Record]) -> None:
    story = told(*events)
    text = json.dumps(story.to_json())
    assert Story.from_json(json.loads(text)).to_json() == json.loads(text)


@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_every_story_has_a_status(events: list[r.Record]) -> None:
    story = told(*events)
    presence = {"rollout-0": status.Presence(90.0, True, {"running": 2.0})}
    view = status.View(story, presence, {"tickets_leased": 2.0, "tickets_ended_failed": 1.0}, 9, 100.0, 99.0)
    reply = status.status_reply(view)
    assert reply.phase in ("Starting", "Running", "Complete", "Failed")
    assert (reply.tickets["leased"], reply.tickets["failed"], reply.trainer_silent_s) == (2, 1, 1.0)
    assert all(replica.silent_s == 10.0 and replica.draining for replica in reply.replicas)


def test_the_newest_evaluation_that_scored_anything_is_shown() -> None:
    scored = r.Evaluated(2, 2, 0, 5, 1, 0.5, 0.5, 9.0, True)
    cut = r.Evaluated(4, 4, 0, 0, 0, 0.0, 0.0, 0.0, False)
    story = told(scored, cut)
    assert story.evaluated == cut
    assert status.evaluation_gauges(story) == {"eval_step": 2.0, "eval_reward_mean": 0.5}
    assert status.evaluation_gauges(told(cut)) == {}
    assert status.evaluation_row(scored, 7.0)["reward_mean"] == 0.5
    row = status.evaluation_row(cut, 7.0)
    assert (row["time"], row["step"], row["reward_mean"], row["complete"]) == (7.0, 4, None, False)


def test_a_failed_jobs_status_says_why() -> None:
    story = told(EVENTS[-1])
    assert (status.phase_of(story), status.reason_of(story)) == ("Failed", "40 of 40 groups had equal rewards")
    assert status.reason_of(told(r.TrainerRegistered(1, 0))) == "waits for the first weights"
    assert status.reason_of(told(r.TrainerRegistered(1, 0), r.Announced(0, 0, 0, "m", "w"))) == ""


def test_trouble_is_noted_with_ticket_and_replica() -> None:
    story = told(*EVENTS[2:9])
    assert [note.reason for note in story.notes] == ["LeaseExpired"]
    assert "(0, 1)" in story.notes[0].message
    assert "rollout-0" in story.notes[0].message


def test_rows_of_the_timeline_name_what_happened() -> None:
    kinds = [row["kind"] for event in EVENTS if (row := record_row(event, 5.0)) is not None]
    assert kinds == ["event", "event", "decision", "publish", "publish", "event", "event"]
    assert weights_row("rollout-0", 3, {"weights_load_started_at": 1.0}, 5.0)["start"] == 1.0


def make_rules(tmp_path: Path, **spec: Any) -> Any:
    job = scripted_job(tmp_path, store_url="redis://127.0.0.1:1", store_passwords={}, port=1, spec=spec)
    return job.spec, rules_of(job, 10)


def test_rules_follow_from_the_job(tmp_path: Path) -> None:
    spec, rules = make_rules(tmp_path, maxPolicyLag=4, weights={"keep": 7})
    assert (rules.steps, rules.epochs, rules.target_policy_lag, rules.order) == (4, None, 2, "plan")
    assert (rules.num_prompts, rules.max_stream_bytes, rules.keep_versions) == (10, 1 << 30, 7)
    assert steps_total(rules, None) == 4
    assert steps_total(rules, 9) == 9
    other, fifo = make_rules(tmp_path, steps=None, scheduler={"planner": "fifo"})
    assert (fifo.steps, fifo.epochs, fifo.order) == (None, 1, "completion")
    assert steps_total(fifo, None) == 5
    assert rules_digest(spec, "data") != rules_digest(other, "data")
    assert rules_digest(spec, "data") != rules_digest(spec, "other data")


def test_replicas_over_the_live_number_are_surplus() -> None:
    assert [is_surplus(f"rollout-{number}", 2) for number in range(4)] == [False, False, True, True]
    assert not is_surplus("rollout-9", None)
    assert not is_surplus("odd", 1)


def test_a_plan_that_cannot_be_made_again_is_refused(tmp_path: Path) -> None:
    journaled = {0: r.PassPlanned(0, 4, "d" * 64, "asp")}
    settings = PlanSettings(seed=0, learns=True, plans_dir=tmp_path, job_file=tmp_path / "job.json")
    planner = PassPlanner(
        planner=build_planner("asp"),
        settings=settings,
        prompt_tokens=np.full(4, 3, np.int32),
        clock=lambda: 0.0,
        journaled=journaled.get,
    )
    with pytest.raises(DataError, match="cannot be made again"):
        planner.plan(0)
    journaled.clear()
    plan = planner.plan(0)
    assert plan is not None
    journaled[0] = r.PassPlanned(0, 4, plan.digest, "asp")
    again = planner.plan(0)
    assert again is not None
    assert again.digest == plan.digest


def test_a_snapshot_goes_through_bytes_unchanged_and_damage_is_found() -> None:
    snapshot = LedgerSnapshot("job-1", 7, 2, {"a": [1]}, {"b": None}, CheckpointMark(3, 4, 0))
    data = compress(snapshot.to_json())
    assert decode(data, job_uid="job-1") == snapshot
    with pytest.raises(CorruptError, match="belongs to job 'job-1'"):
        decode(data, job_uid="job-2")
    damaged = [b"", data[:-3], b"x" + data, compress("[]"), compress("{}"), compress('{"schema_version": 9}')]
    for bad in damaged:
        with pytest.raises(CorruptError):
            decode(bad, job_uid="job-1")


def test_metrics_keep_one_row_a_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    for step in range(4):
        metrics.add_step({"step": step, "lineage": 0})
    metrics.flush()
    metrics.cut(from_step=9)
    metrics.add_step({"step": 2, "lineage": 1})
    metrics.flush()
    assert [(row["step"], row["lineage"]) for row in metrics.read()] == [(0, 0), (1, 0), (2, 1)]
    with path.open("a") as file:
        file.write('{"step": 3, "li')
    again = MetricsFile(path)
    again.mend()
    assert again.last_step == 2
    again.add_step({"step": 3, "lineage": 1})
    again.flush()
    assert [row["step"] for row in MetricsFile(path).read()] == [0, 1, 2, 3]


def test_a_file_that_cannot_be_written_costs_rows_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    lines = LinesFile(tmp_path / "file" / "timeline.jsonl")
    for _ in range(3):
        lines.add({"kind": "event"})
        lines.flush()
    assert len(caplog.records) == 1
    nowhere = MetricsFile(None)
    nowhere.add_step({"step": 0})
    nowhere.cut(from_step=0)
    nowhere.mend()
    nowhere.flush()
    assert nowhere.read() == []


def test_where_to_listen_follows_from_the_endpoint() -> None:
    assert bind_address("127.0.0.1:7") == "127.0.0.1:7"
    assert bind_address("localhost:7") == "127.0.0.1:7"
    assert bind_address("scheduler.default.svc:7") == "[::]:7"
    assert bind_address("[::1]:7") == "[::1]:7"


def test_the_volumes_incarnation_is_kept(tmp_path: Path) -> None:
    assert read_incarnation(tmp_path / "journal") == 0
    write_incarnation(tmp_path / "journal", 6)
    assert read_incarnation(tmp_path / "journal") == 6


async def test_replies_are_made_once_and_old_ones_forgotten() -> None:
    replies: Replies[int] = Replies(keep=8)
    calls: list[int] = []

    async def call() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise CorruptError("first try")
        return len(calls)

    with pytest.raises(CorruptError):
        await replies.once("a", call)
    assert [await replies.once("a", call) for _ in range(3)] == [2, 2, 2]
    for number in range(20):
        await replies.once(f"b{number}", call)
    assert await replies.once("a", call) > 2
