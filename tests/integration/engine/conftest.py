"""A tiny character model in several weight versions, and vLLM engines on it that live for the whole session."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from drumroll_rollout.engine import Chunk, Engine, GenerationRequest, SamplingSettings
from drumroll_rollout.vllm_engine import VllmEngine
from drumroll_trainer.learner.tiny_model import make_tiny_model

from drumroll.api.spec import RLJobSpec
from drumroll.job import Endpoints, Layout, ResolvedJob
from drumroll.model_files import copy_companions
from drumroll.weights import WeightStore

VERSIONS = 3


@dataclass
class Collected:
    """All that came of one request."""

    chunks: list[Chunk] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [value for chunk in self.chunks for value in chunk.logprobs]

    @property
    def versions(self) -> list[int]:
        return [version for chunk in self.chunks for version in chunk.versions]

    @property
    def finish_reason(self) -> str | None:
        return self.chunks[-1].finish_reason if self.chunks else None


def make_job(model_dir: Path, *, sampling: dict[str, object] | None = None) -> ResolvedJob:
    spec = {
        "model": {"path": "model", "dtype": "float32"},
        "data": {"train": {"path": "rows.jsonl"}, "maxPromptTokens": 320, "maxResponseTokens": 192},
        "reward": {"type": "exact"},
        "steps": 1,
        "sampling": sampling or {},
        "rollout": {"maxConcurrentSamples": 8, "threads": 1, "engine": {"kvCacheMemory": "64Mi"}},
    }
    return ResolvedJob(
        uid="uid",
        name="engine",
        namespace="default",
        spec=RLJobSpec.model_validate(spec),
        layout=Layout(job_dir="job", data_dir="data", model_dir=str(model_dir), source_dir="."),
        endpoints=Endpoints(scheduler="127.0.0.1:1", store="redis://127.0.0.1:1"),
    )


def publish_versions(root: Path, models: list[Path]) -> list[Path]:
    """Publish each model as a version of its own; returns the versions' directories."""
    store = WeightStore(root, "uid")
    published = []
    for version, model in enumerate(models):
        staging = store.stage(version)
        shutil.copy(model / "model.safetensors", staging)
        copy_companions(model, staging, dtype="float32")
        published.append(store.publish(staging, version=version, step=version, lineage=0).path)
    return published


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories of versions 0, 1, 2 of one model; version 0's has the sampling defaults of case V6."""
    base = tmp_path_factory.mktemp("plain")
    models = [make_tiny_model(base / f"model{seed}", seed=seed) for seed in range(VERSIONS)]
    shutil.copy(Path(__file__).parent / "V6_generation_config.json", models[0] / "generation_config.json")
    return publish_versions(base / "weights", models)


@pytest.fixture(scope="session")
def tied_weights(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Likewise, of a model whose head is its embedding."""
    base = tmp_path_factory.mktemp("tied")
    models = [make_tiny_model(base / f"model{seed}", seed=seed, tie_embeddings=True) for seed in range(2)]
    return publish_versions(base / "weights", models)


@asynccontextmanager
async def running(job: ResolvedJob, replica: str) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(job, replica=replica)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(weights: list[Path]) -> AsyncIterator[VllmEngine]:
    """An engine that goes through many versions."""
    async with running(make_job(weights[0]), "rollout-0") as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fresh_engine(weights: list[Path]) -> AsyncIterator[VllmEngine]:
    """An engine that has never had other weights than version 1."""
    async with running(make_job(weights[0]), "rollout-1") as started:
        await started.load_weights(1, weights[1])
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tied_engine(tied_weights: list[Path]) -> AsyncIterator[VllmEngine]:
    async with running(make_job(tied_weights[0], sampling={"stop": ["END"]}), "rollout-2") as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def start_engine() -> AsyncIterator[Callable[[Path], Awaitable[VllmEngine]]]:
    """Starts engines that the test may break; they are closed after it."""
    started: list[VllmEngine] = []

    async def start(model_dir: Path) -> VllmEngine:
        started.append(VllmEngine(make_job(model_dir), replica=f"rollout-{len(started)}"))
        await started[-1].start()
        return started[-1]

    yield start
    for engine in started:
        await engine.close()


@pytest.fixture
def request_of() -> Iterator[Callable[..., GenerationRequest]]:
    """Makes requests with ids of their own."""
    count = 0

    def make(prompt_ids: list[int], *, done_tokens: int = 0, **sampling: object) -> GenerationRequest:
        nonlocal count
        count += 1
        values: dict[str, object] = {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "repetition_penalty": 1.0,
            "max_tokens": 32,
            "stop_token_ids": (),
        }
        settings = SamplingSettings(**(values | sampling))  # type: ignore[arg-type]
        return GenerationRequest(f"request-{count}", prompt_ids, settings, row=0, index=count, done_tokens=done_tokens)

    return make


@pytest.fixture
def collect() -> Callable[..., object]:
    """Runs a request to its end; `into` sees the chunks as they come."""

    async def run(engine: Engine, request: GenerationRequest, into: Collected | None = None) -> Collected:
        collected = into if into is not None else Collected()
        async with aclosing(engine.generate(request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                collected.chunks.append(chunk)
        return collected

    return run


@pytest.fixture
def job_of() -> Callable[[Path], ResolvedJob]:
    return make_job


@pytest.fixture
def collected_type() -> type[Collected]:
    return Collected
