"""How far the simulator can be believed, and how fast it is.

    python bench/simulator.py [--data DIR] [--parts trace,speed,engines,services] [--out results.json]

- trace: a vLLM run of 300 requests (DIR, or the environment's DRUMROLL_DATA, holds engine/rtxpro6000_*), fitted on a
  half of its requests; latency and makespan of the others. Target: 3 % each.
- speed: samples simulated a second, in both modes. Target: 50,000 in the fast one.
- engines: two vLLM replicas on this machine's CPU with forced lengths and a modelled trainer, in three orders, each
  three times. Target: iteration time within the larger of 5 % and twice the spread of the repeats; orders that differ
  by more than that rank alike. Needs two free cores, takes about 5 minutes.
- services: the scheduler service and 16 replay engines in real time, likewise. Needs two free cores, about 4 minutes.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from drumroll_planner.cost_fit import EngineSettings, TracedRequest, fit_trace, replay_trace
from drumroll_planner.cost_presets import preset
from drumroll_planner.costs import CostModel
from drumroll_planner.plan import PassPlan
from drumroll_planner.rules import Rules
from drumroll_planner.sim import SimJob, simulate

TRACE = "rtxpro6000_llama-3.1-8b_vllm"
REPEATS = 3


@dataclass(frozen=True, slots=True)
class TraceError:
    """Of the requests that were not fitted to."""

    split: str
    latency_mean: float
    latency_p90: float
    makespan: float


def read_trace(folder: Path) -> tuple[list[TracedRequest], EngineSettings]:
    """The run's requests on the engine's clock, and how the engine was set."""
    rows = [json.loads(line) for line in (folder / f"{TRACE}_requests.jsonl").read_text().splitlines()]
    meta = json.loads((folder / f"{TRACE}_meta.json").read_text())["engine_kwargs"]
    # Arrivals are on the client's clock: no request can be queued before it came.
    shift = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    origin = rows[0]["arrival_time"] + shift
    requests = [
        TracedRequest(
            row["arrival_time"] + shift - origin,
            row["input_toks"],
            row["output_toks"],
            row["first_token_ts"] - origin,
            row["last_token_ts"] - origin,
        )
        for row in rows
    ]
    return requests, EngineSettings(meta["max_num_seqs"], meta["max_num_batched_tokens"])


def trace_errors(folder: Path) -> list[TraceError]:
    """Errors on the halves that were left out: odd requests, even ones, the second half in time."""
    requests, settings = read_trace(folder)
    number = np.arange(len(requests))
    halves = {"odd": number % 2 == 1, "even": number % 2 == 0, "first half": number < len(requests) // 2}
    start = preset("a100-llama-3.1-8b")
    arrivals = np.array([request.arrival_s for request in requests])
    lasts = np.array([request.last_token_s for request in requests])
    results = []
    for split, used in halves.items():
        model, _ = fit_trace(requests, settings, used=used, start=start)
        _, replayed = replay_trace(requests, settings, model)
        ends = np.array([last for _, last in replayed])
        errors = np.abs((ends - arrivals) / (lasts - arrivals) - 1)[~used]
        results.append(
            TraceError(
                split, float(errors.mean()), float(np.quantile(errors, 0.9)), float(ends.max() / lasts.max() - 1)
            )
        )
    return results


def speed_job(num_replicas: int, tickets: int) -> SimJob:
    """A job with long tails on a preset's costs."""
    generator = np.random.default_rng(0)
    logs = generator.normal(0, 0.8, tickets)[:, None] + generator.normal(0, 0.4, (tickets, 8))
    lengths = np.clip(600 * np.exp(logs), 4, 8192).astype(np.int32)
    rules = Rules(
        num_prompts=tickets,
        group_size=8,
        prompts_per_step=32,
        max_policy_lag=4,
        target_policy_lag=2,
        lag_policy="wait",
        steps=None,
        epochs=1,
        max_attempts=3,
        max_failed_tickets=0.01,
        lease_term_s=60.0,
        dynamic_sampling=False,
        max_sampling_tries=10,
        order="plan",
        max_stream_bytes=10**12,
        keep_versions=4,
    )
    plan = PassPlan(0, "fifo", np.arange(tickets), np.zeros(tickets, np.int32), "")
    return SimJob(
        rules=rules,
        plan=plan,
        lengths=lengths,
        prompt_tokens=np.full(tickets, 200, np.int32),
        costs=preset(),
        num_replicas=num_replicas,
    )


def trace_part(data: Path | None) -> list[dict[str, Any]]:
    """Held against a real run."""
    if data is None:
        print("trace: skipped: neither --data nor DRUMROLL_DATA names the folder with engine/")
        return []
    print("trace: 300 requests on vLLM 0.19, fitted on a half (target: 3 % each)")
    rows = []
    for error in trace_errors(data / "engine"):
        rows.append({"split": error.split, "latency": error.latency_mean, "makespan": error.makespan})
        print(
            f"  fitted on {error.split:10}: latency of the others {error.latency_mean:6.2%} "
            f"(p90 {error.latency_p90:6.2%}), makespan {error.makespan:+6.2%}"
        )
    return rows


def speed_part() -> list[dict[str, Any]]:
    """Samples a second of processor time."""
    print("speed: samples simulated a second of one core (target: 50,000 in the fast mode)")
    rows = []
    for mode, tickets in (("fast", 3200), ("policy", 800)):
        for replicas in (1, 8, 64):
            job = speed_job(replicas, tickets)
            began = time.process_time()
            result = simulate(job, mode=mode)  # type: ignore[arg-type]
            rate = result.counts.samples / (time.process_time() - began)
            rows.append({"mode": mode, "replicas": replicas, "samples_per_s": rate})
            print(f"  {mode:6} {replicas:3} replicas: {rate:9,.0f}")
    return rows


def orders(lengths: np.ndarray, per_step: int) -> dict[str, np.ndarray]:
    """The same prompts in three orders: as they come, by length, and the long ones spread evenly."""
    ranked = np.argsort(lengths.max(axis=1), kind="stable")
    spread = np.concatenate([ranked[place :: len(ranked) // per_step] for place in range(len(ranked) // per_step)])
    return {"as it comes": lengths, "by length": lengths[ranked], "spread": lengths[spread]}


def live_part(name: str, base: Any, *, costs: CostModel | None) -> list[dict[str, Any]]:
    """A live run in three orders, three times each, beside the simulator; without `costs` they are measured first."""
    from simulator_live import live, simulated

    print(f"{name}: seconds a step (target: within the larger of 5 % and twice the spread)")
    rows = []
    turnaround_s = None
    for order, lengths in orders(base.lengths, base.per_step).items():
        setting = replace(base, lengths=lengths)
        measured = []
        for _ in range(REPEATS):
            result = asyncio.run(live(setting, profile=costs is None))
            costs = costs or result.costs
            turnaround_s = turnaround_s or result.turnaround_s
            measured.append(result.iteration_s)
        assert costs is not None
        assert turnaround_s is not None
        real, spread = float(np.mean(measured)), (max(measured) - min(measured)) / float(np.mean(measured))
        sim = simulated(setting, costs, turnaround_s).iteration_s
        within = abs(sim / real - 1) <= max(0.05, 2 * spread)
        rows.append({"order": order, "measured": measured, "simulated": sim, "spread": spread, "within": within})
        print(
            f"  {order:12}: {real:6.3f} measured (spread {spread:5.1%}), {sim:6.3f} simulated, {sim / real - 1:+6.1%}"
        )
    print(f"  turnaround of a place: {1e3 * (turnaround_s or 0):.0f} ms")
    print(f"  ranking agrees: {'yes' if ranks_alike(rows) else 'NO'}")
    return rows


def ranks_alike(rows: list[dict[str, Any]]) -> bool:
    """Whether orders whose times differ by more than the noise stand in the same sequence."""
    means = [float(np.mean(row["measured"])) for row in rows]
    noise = max(0.05, 2 * max(row["spread"] for row in rows))
    pairs = [(a, b) for a in range(len(rows)) for b in range(a) if abs(means[a] / means[b] - 1) > noise]
    return all((means[a] < means[b]) == (rows[a]["simulated"] < rows[b]["simulated"]) for a, b in pairs)


def long_tail(prompts: int, group: int, median: float, cap: int) -> np.ndarray:
    """Lengths with a long tail, most of it between prompts."""
    generator = np.random.default_rng(5)
    logs = generator.normal(0, 0.7, prompts)[:, None] + generator.normal(0, 0.3, (prompts, group))
    return np.clip(median * np.exp(logs), 2, cap).astype(np.int32)


def engines_part() -> list[dict[str, Any]]:
    """Two vLLM replicas on the CPU."""
    from drumroll_trainer.learner.tiny_model import make_tiny_model
    from simulator_live import Setting

    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", seed=0, hidden=128, layers=4, heads=4, max_tokens=1200)
        setting = Setting(
            name="engines",
            engine={"type": "vllm", "enforceEager": True},
            replicas=2,
            processes=2,
            slots=16,
            group=4,
            per_step=8,
            steps=12,
            bound=2,
            trainer=CostModel(train_step_s=0.3, train_token_s=1e-4, publish_s=0.05),
            lengths=long_tail(96, 4, 60, 600),
            model=model,
        )
        return live_part("engines", setting, costs=None)


def services_part() -> list[dict[str, Any]]:
    """The scheduler service and sixteen replay engines."""
    from simulator_live import Setting

    from drumroll.weights_manifest import MANIFEST, WeightManifest

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        (model / "config.json").write_text('{"vocab_size": 64}')
        (model / MANIFEST).write_bytes(WeightManifest(0, 0, 0, "bench", (), (), "0" * 64).to_json())
        step_s, sequence_s, load_s = 0.05, 0.005, 0.1
        replay = {"stepSeconds": step_s, "stepSecondsPerSequence": sequence_s, "loadSeconds": load_s}
        setting = Setting(
            name="services",
            engine={"type": "replay", "replay": {**replay, "medianTokens": 1e6, "sigma": 0.0}},
            replicas=16,
            processes=1,
            slots=4,
            group=4,
            per_step=8,
            steps=12,
            bound=2,
            trainer=CostModel(train_step_s=0.5, train_token_s=1e-4, publish_s=0.1),
            lengths=long_tail(96, 4, 20, 150),
            model=model,
        )
        # The replay engine has no prefill of its own: a request's first token takes a step, as in the simulator.
        costs = CostModel(step_s=step_s - sequence_s, sequence_s=sequence_s, publish_pause_s=load_s)
        return live_part("services", setting, costs=costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = os.environ.get("DRUMROLL_DATA")
    parser.add_argument("--data", type=Path, default=Path(known) if known else None)
    parser.add_argument("--parts", default="trace,speed,engines,services")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    parts = {
        "trace": lambda: trace_part(arguments.data),
        "speed": speed_part,
        "engines": engines_part,
        "services": services_part,
    }
    results = {name: parts[name]() for name in arguments.parts.split(",")}
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
