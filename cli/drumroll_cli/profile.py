"""`drumroll profile`: measure an engine on this machine and write its costs for `drumroll simulate` and the planner."""

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from drumroll_rollout.engine import Engine

    from drumroll.job import ResolvedJob
    from drumroll_cli.simulating.profiling import Sweep


def profile(
    model_dir: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="A model directory (safetensors).")],
    engine: Annotated[str, typer.Option("--engine", help="vllm, or replay (for tests).")] = "vllm",
    batches: Annotated[str, typer.Option("--batches", help="Numbers of running sequences.")] = "1,2,4,8,16,32,64",
    contexts: Annotated[str, typer.Option("--contexts", help="Prompt tokens of each sequence.")] = "128,1024",
    prefills: Annotated[str, typer.Option("--prefills", help="Prompts that are prefilled alone, in tokens.")] = (
        "64,256,1024"
    ),
    tokens: Annotated[int, typer.Option("--tokens", min=4, help="Answer tokens of each sequence.")] = 48,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="How often each is measured.")] = 2,
    dtype: Annotated[str, typer.Option("--dtype", help="As spec.model.dtype.")] = "bfloat16",
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", min=1, help="GPUs of a replica.")] = 1,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="OpenMP threads on a CPU.")] = None,
    out: Annotated[Path, typer.Option("--out", help="File of costs to write.")] = Path("costs.json"),
    plot: Annotated[Path | None, typer.Option("--plot", help="Picture to write; default: as --out, .svg.")] = None,
) -> None:
    """Measure what decode steps, prefills and weight loads of a model take here, and fit a cost model to them.

    The engine should have the machine to itself. Trainer costs are not measured: the file gets those of the default
    preset (`train_step_s`, and `train_token_s` for each token), to be replaced by hand.

    Examples:

    `drumroll profile /models/Qwen2.5-1.5B-Instruct --out costs.json`

    `drumroll simulate job.yaml --costs costs.json --replicas 1..64`
    """
    from rich.console import Console

    from drumroll_cli.simulating.profiling import Sweep, parse_counts

    sweep = Sweep(
        batches=parse_counts("--batches", batches),
        contexts=parse_counts("--contexts", contexts),
        prefills=parse_counts("--prefills", prefills),
        tokens=tokens,
        repeats=repeats,
    )
    job = _job(model_dir, engine, sweep, dtype=dtype, tensor_parallel=tensor_parallel, threads=threads)
    console = Console()
    _measure(job, sweep, console, out, plot or out.with_suffix(".svg"))


def _measure(job: "ResolvedJob", sweep: "Sweep", console: object, out: Path, plot: Path) -> None:
    from drumroll_planner.cost_presets import preset
    from drumroll_rollout.engine_choice import vocabulary_size
    from rich.console import Console

    from drumroll_cli.simulating.pictures import draw_costs
    from drumroll_cli.simulating.profiling import profile as measure

    assert isinstance(console, Console)
    model_dir = Path(job.layout.model_dir)
    name = f"{model_dir.resolve().name} on this machine"
    with _weights(job, model_dir) as weights:
        profiled = asyncio.run(
            measure(
                _engine(job),
                weights,
                sweep,
                name=name,
                vocabulary=vocabulary_size(model_dir),
                say=lambda message: console.print(message, highlight=False),
                start_from=preset(),
            )
        )
    out.write_text(profiled.model.to_json(), encoding="utf-8")
    draw_costs(profiled.model, profiled.decode, plot, title=name)
    for fit, error in profiled.model.errors:
        console.print(f"{fit}: median error {error.median:.1%}, p90 {error.p90:.1%}, {error.count} measurements")
    console.print(f"costs: {out}, picture: {plot}", highlight=False, soft_wrap=True)


def _job(
    model_dir: Path, engine: str, sweep: "Sweep", *, dtype: str, tensor_parallel: int, threads: int | None
) -> "ResolvedJob":
    """A job that has nothing but this engine."""
    from drumroll.api.spec import RLJobSpec
    from drumroll.errors import UserError
    from drumroll.job import Endpoints, Layout, ResolvedJob

    if engine not in ("vllm", "replay"):
        raise UserError(f"--engine: {engine!r} is not known; write vllm or replay")
    spec = {
        "model": {"path": str(model_dir), "dtype": dtype},
        "data": {
            "train": {"path": "none"},
            "maxPromptTokens": sweep.max_prompt_tokens,
            "maxResponseTokens": sweep.tokens + 1,
        },
        "reward": {"type": "exact"},
        "steps": 1,
        "rollout": {
            "maxConcurrentSamples": max(sweep.batches),
            "tensorParallelSize": tensor_parallel,
            "engine": {"type": engine, "replay": {"medianTokens": 1e6, "sigma": 0.0}},
            **({} if threads is None else {"threads": threads}),
        },
    }
    return ResolvedJob(
        uid="profile",
        name="profile",
        namespace="default",
        spec=RLJobSpec.model_validate(spec),
        layout=Layout(job_dir="", data_dir="", model_dir=str(model_dir), source_dir="."),
        endpoints=Endpoints(scheduler="", store=""),
    )


def _engine(job: "ResolvedJob") -> "Engine":
    from drumroll_proto.v1 import common_pb2
    from drumroll_rollout.engine_choice import choose_engine

    return choose_engine(job, common_pb2.ReplicaId(name="profile-0", instance="profile"), stop_token_ids=())


@contextlib.contextmanager
def _weights(job: "ResolvedJob", model_dir: Path) -> Iterator[Path]:
    """The directory to load: the model's own, or for the replay engine one with nothing but a manifest."""
    if job.spec.rollout.engine.type == "vllm":
        yield model_dir
        return
    from drumroll.weights_manifest import MANIFEST, WeightManifest

    with tempfile.TemporaryDirectory() as folder:
        manifest = WeightManifest(0, 0, 0, job.uid, (), (), "0" * 64)
        (Path(folder) / MANIFEST).write_bytes(manifest.to_json())
        yield Path(folder)
