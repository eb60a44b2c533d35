"""What a terminal shows of a run."""

import io

import pytest
from drumroll_cli.local.podspec import Container, LocalPod
from drumroll_cli.local.runner import Board
from drumroll_cli.local.supervisor import Host, Supervisor
from drumroll_cli.local.view import History, View, clock, print_steps, sparkline, step_line
from drumroll_proto.v1 import journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.integers(1, 50))
def test_a_sparkline_has_a_block_per_value(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)


def test_a_sparkline_spans_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([5.0, 1.0, 2.0], 2) == "▁█"


def test_times_are_read_at_a_glance() -> None:
    assert (clock(5), clock(65.4), clock(7265)) == ("0:05", "1:05", "2:01:05")


def step(number: int, reward: float, **stats: float) -> pb.StepStatus:
    return pb.StepStatus(step=number, version=number + 1, stats={"reward/mean": reward, **stats})


def status(**fields: object) -> pb.StatusReply:
    return pb.StatusReply(
        phase="Running",
        steps_done=2,
        steps_total=8,
        recent=[
            step(0, 0.25, **{"timing_s/step": 4.0}),
            step(1, 0.75, lag_min=0, lag_mean=1.5, lag_max=3, **{"timing_s/step": 6.0, "response_length/mean": 31}),
        ],
        tickets={"leased": 5, "streamed": 2, "decided": 4, "trained": 8},
        newest=pb.AnnouncedWeights(version=2),
        replicas=[
            pb.ReplicaStatus(name="rollout-0", version=2, attested=True, leases=3, slots=16, gauges={"kv_usage": 0.25}),
            pb.ReplicaStatus(name="rollout-1", slots=16),
        ],
        notes=[journal_pb2.Noted(reason="StreamLost", message="the store came back empty")],
        **fields,  # type: ignore[arg-type]
    )


def supervisor(name: str, tmp_path: object) -> Supervisor:
    pod = LocalPod(name, name.split("-")[0], (), Container("x", ("x",), {}, {}, 0, None), (), "Always", 1.0)
    host = Host(tmp_path, "/", {}, lambda: False, lambda: 0, print, lambda: None)  # type: ignore[arg-type]
    return Supervisor(pod, host, gpus="")


@pytest.fixture
def shown(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> object:
    """shown(status, width): what is drawn, line by line."""
    monkeypatch.setattr("drumroll_cli.local.view.time.monotonic", lambda: 65.0)

    def show(reply: pb.StatusReply | None, width: int = 80) -> list[str]:
        board = Board(status=reply, messages=[f"message {i}" for i in range(6)])
        parts = [supervisor(name, tmp_path) for name in ("store", "trainer-0", "rollout-0", "rollout-1")]
        parts[2].restarts = 1
        view = View("tiny", board, parts, began=0.0)
        view.refresh_history(65.0)
        console = Console(file=io.StringIO(), width=width)
        console.print(view)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]

    return show


def test_the_view_at_80_columns(shown: object) -> None:
    assert shown(status()) == [  # type: ignore[operator]
        "tiny  Running  1:05",
        "steps ━━━━━━━━━━                               2/8  about 0:30 left",
        "reward    0.500         ▁█  mean of 10",
        "lag       0 / 1.50 / 3  policy versions: min / mean / max of the last step",
        "tokens/s  0             weights: version 2",
        "groups    11            generating 5, waiting 2, decided 4, uncovered 8",
        "  process      state                   version    samples    kv",
        "  store        waiting",
        "  trainer-0    waiting                 2",
        "  rollout-0    waiting (1 restarts)    2          3/16       25 %",
        "  rollout-1    waiting                 -          0/16       0 %",
        "StreamLost: the store came back empty",
        "message 2",
        "message 3",
        "message 4",
        "message 5",
    ]


def test_no_line_is_wider_than_the_terminal(shown: object) -> None:
    for width in (60, 80, 120, 200):
        assert max(map(len, shown(status(), width))) <= width  # type: ignore[operator]


def test_before_the_scheduler_answers_there_are_processes_alone(shown: object) -> None:
    lines = shown(None)  # type: ignore[operator]
    assert lines[0] == "tiny  Starting  1:05"
    assert lines[2].split() == ["store", "waiting"]


def test_before_the_first_step_there_are_no_numbers(shown: object) -> None:
    lines = shown(pb.StatusReply(phase="Running", steps_total=8))  # type: ignore[operator]
    assert lines[2].split()[:2] == ["reward", "-"]
    assert lines[3].split()[:2] == ["lag", "-"]


def test_history_outlives_the_short_memory_of_a_status() -> None:
    history = History()
    assert [s.step for s in history.add(status(), 0.0)] == [0, 1]
    later = pb.StatusReply(
        recent=[step(1, 0.75), step(2, 0.5)], replicas=[pb.ReplicaStatus(gauges={"tokens_total": 90})]
    )
    assert [s.step for s in history.add(later, 3.0)] == [2]
    assert history.rewards == {0: 0.25, 1: 0.75, 2: 0.5}
    assert history.tokens_per_s == 30.0


def test_logs_get_a_line_per_step() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_steps(console, status().recent, 8)
    first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first.startswith("step 1/8  version 1  reward 0.250")
    assert "lag 0/1.5/3  length 31" in second
    assert second == step_line(status().recent[1], 8)
