"""The picture of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from drumroll_cli.local.picture import draw, read_rows, running_samples, trailing_mean
from hypothesis import given
from hypothesis import strategies as st


def write(path: Path, rows: list[dict[str, Any]], *, torn: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
    return path


LAG = {"lag_min": 0, "lag_mean": 0.5, "lag_max": 1}
STEPS = [{"time": 100.0 + i, "step": i, "reward/mean": 0.1 * i, **LAG} for i in range(12)]
EVENTS = [
    {"kind": "queue", "time": 99.0, "gauges": {"tickets_leased": 3}},
    *({"kind": "sample", "replica": "rollout-0", "start": 99.5 + i, "end": 101.0 + i} for i in range(5)),
    {"kind": "weights", "replica": "rollout-0", "start": 101.0, "end": 101.5, "version": 1},
    {"kind": "step", "start": 100.0, "end": 100.4},
    {"kind": "event", "time": 103.0},
]


@pytest.mark.parametrize(("name", "magic"), [("run.svg", b"<?xml"), ("run.png", b"\x89PNG")])
def test_a_picture_appears(tmp_path: Path, name: str, magic: bytes) -> None:
    metrics = write(tmp_path / "metrics.jsonl", STEPS, torn='{"time": 1')
    timeline = write(tmp_path / "timeline.jsonl", EVENTS)
    assert draw(metrics, timeline, tmp_path / name, title="tiny", max_lag=2)
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_a_run_without_a_timeline_has_its_curves(tmp_path: Path) -> None:
    metrics = write(tmp_path / "metrics.jsonl", STEPS)
    assert draw(metrics, tmp_path / "none", tmp_path / "run.svg", title="tiny", max_lag=0)


def test_a_run_without_a_step_has_no_picture(tmp_path: Path) -> None:
    assert not draw(tmp_path / "none", tmp_path / "none", tmp_path / "run.svg", title="tiny", max_lag=2)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    assert read_rows(write(tmp_path / "rows.jsonl", [{"a": 1}, {"a": 2}], torn='{"a": ')) == [{"a": 1}, {"a": 2}]


def test_running_samples_rise_and_fall() -> None:
    assert running_samples([(0.0, 2.0), (1.0, 3.0)]) == ([0.0, 1.0, 2.0, 3.0], [1, 2, 1, 0])
    assert running_samples([]) == ([], [])


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), max_size=30))
def test_running_samples_never_fall_below_none_and_end_there(spans: list[tuple[float, float]]) -> None:
    times, counts = running_samples([(start, start + length) for start, length in spans])
    assert times == sorted(times)
    assert not counts or counts[-1] == 0
    assert max(counts, default=0) <= len(spans)


def test_a_trailing_mean_starts_with_what_there_is() -> None:
    assert trailing_mean([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
