"""The simulator against a real vLLM run, where the data is there (DRUMROLL_DATA): 3 % on what was not fitted."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[4] / "bench" / "simulator.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_simulator", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look themselves up there.
    sys.modules["bench_simulator"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data() -> Path:
    folder = os.environ.get("DRUMROLL_DATA")
    if folder is None:
        pytest.skip("DRUMROLL_DATA does not name the folder with engine/")
    return Path(folder)


def test_latencies_and_makespan_of_what_was_not_fitted_are_within_three_percent(bench: Any, data: Path) -> None:
    for error in bench.trace_errors(data / "engine"):
        assert error.latency_mean <= 0.03, error
        assert abs(error.makespan) <= 0.03, error


def test_orders_rank_alike_only_where_they_do(bench: Any) -> None:
    rows = [
        {"measured": [1.0, 1.02], "simulated": 1.1, "spread": 0.02},
        {"measured": [1.5, 1.52], "simulated": 1.4, "spread": 0.02},
    ]
    assert bench.ranks_alike(rows)
    rows[1]["simulated"] = 1.0
    assert not bench.ranks_alike(rows)
    rows[1]["measured"] = [1.04]
    assert bench.ranks_alike(rows), "they differ by less than the noise"
