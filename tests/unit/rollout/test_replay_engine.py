"""The replay engine: same tokens whoever makes them, paced by the step-cost model."""

import asyncio
import json
from pathlib import Path

import pytest
from drumroll_rollout.engine import Chunk, EngineError, GenerationRequest, SamplingSettings
from drumroll_rollout.replay_engine import ReplayEngine
from drumroll_rollout.replay_lengths import ReplayLengths, ReplayTokens, read_lengths
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.api.spec import ReplayEngine as ReplaySettings
from drumroll.errors import UserError
from drumroll.testing import eventually
from drumroll.weights_manifest import MANIFEST, LogitProbe, WeightManifest

EOS = 2


class ManualPace:
    """Time that moves only when the engine sleeps; it can be stopped."""

    def __init__(self) -> None:
        self.time = 0.0
        self.running = asyncio.Event()
        self.running.set()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        await self.running.wait()
        self.time += max(0.0, seconds)


def engine(pace: ManualPace, *, lengths: ReplayLengths, slots: int = 8, **overrides: float) -> ReplayEngine:
    values = {"step_seconds": 0.02, "step_seconds_per_sequence": 0.005, "load_seconds": 0.5} | overrides
    return ReplayEngine(
        ReplaySettings(**values), lengths=lengths, tokens=ReplayTokens(3, range(5, 100)), slots=slots, pace=pace
    )


def request(row: int, index: int = 0, *, done: int = 0, max_tokens: int = 1000) -> GenerationRequest:
    sampling = SamplingSettings(1.0, 1.0, 0, 1.0, max_tokens, (EOS,))
    return GenerationRequest(f"{row}/{index}", [1, 2, 3], sampling, row, index, done_tokens=done)


async def collect(source: ReplayEngine, wanted: GenerationRequest) -> tuple[list[int], list[float], list[Chunk]]:
    chunks = [chunk async for chunk in source.generate(wanted)]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    return ids, [value for chunk in chunks for value in chunk.logprobs], chunks


@pytest.fixture
def version_dir(tmp_path: Path) -> Path:
    return write_version(tmp_path, 1)


def write_version(root: Path, version: int) -> Path:
    directory = root / f"v{version}"
    directory.mkdir()
    probe = LogitProbe((1, 2, 3), (-0.5, -float(version)), 0.01)
    manifest = WeightManifest(version, 0, 0, "uid", (), (), "0" * 64, probe=probe)
    (directory / MANIFEST).write_bytes(manifest.to_json())
    return directory


async def test_an_answer_has_its_length_its_end_token_and_one_version_per_token(version_dir: Path) -> None:
    source = engine(ManualPace(), lengths=ReplayLengths(0, given=(40,)))
    await source.start()
    await source.load_weights(1, version_dir)
    ids, logprobs, chunks = await collect(source, request(0))
    assert (len(ids), len(logprobs), ids[-1], chunks[-1].finish_reason) == (40, 40, EOS, "stop")
    assert EOS not in ids[:-1]
    assert all(chunk.versions == (1,) * len(chunk.token_ids) for chunk in chunks)
    await source.close()


async def test_an_answer_over_the_limit_is_cut(version_dir: Path) -> None:
    source = engine(ManualPace(), lengths=ReplayLengths(0, given=(40,)))
    await source.start()
    await source.load_weights(1, version_dir)
    ids, _, chunks = await collect(source, request(0, max_tokens=10))
    assert (len(ids), chunks[-1].finish_reason) == (10, "length")
    assert EOS not in ids
    await source.close()


async def test_a_continued_answer_has_the_tokens_of_an_undivided_one(version_dir: Path) -> None:
    first, second = (engine(ManualPace(), lengths=ReplayLengths(0, given=(50,))) for _ in range(2))
    for source in (first, second):
        await source.start()
        await source.load_weights(1, version_dir)
    whole = await collect(first, request(7, 3))
    rest = await collect(second, request(7, 3, done=20))
    assert whole[0][20:] == rest[0]
    assert whole[1][20:] == rest[1]
    await first.close()
    await second.close()


async def test_steps_take_the_time_of_the_cost_model(version_dir: Path) -> None:
    pace = ManualPace()
    source = engine(pace, lengths=ReplayLengths(0, by_row={0: (10,), 1: (4,)}))
    await source.start()
    await source.load_weights(1, version_dir)
    begin = pace.time
    await asyncio.gather(collect(source, request(0)), collect(source, request(1)))
    assert pace.time - begin == pytest.approx(4 * 0.025 + 6 * 0.02)
    await source.close()


async def test_short_steps_are_handed_out_together(version_dir: Path) -> None:
    source = engine(ManualPace(), lengths=ReplayLengths(0, given=(500,)), step_seconds=0.0001)
    await source.start()
    await source.load_weights(1, version_dir)
    ids, _, chunks = await collect(source, request(0))
    assert len(ids) == 500
    assert len(chunks) <= 8
    await source.close()


async def test_more_requests_than_slots_wait_for_their_turn(version_dir: Path) -> None:
    pace = ManualPace()
    source = engine(pace, lengths=ReplayLengths(0, given=(5,)), slots=2)
    await source.start()
    await source.load_weights(1, version_dir)
    pace.running.clear()
    tasks = [asyncio.create_task(collect(source, request(row))) for row in range(5)]
    await eventually(lambda: source.stats().waiting == 3)
    assert source.stats().running == 2
    pace.running.set()
    assert [len(ids) for ids, _, _ in await asyncio.gather(*tasks)] == [5] * 5
    assert source.stats().tokens_total == 25
    await source.close()


async def test_requests_go_on_over_a_weight_load(tmp_path: Path) -> None:
    pace = ManualPace()
    source = engine(pace, lengths=ReplayLengths(0, given=(30,)))
    await source.start()
    await source.load_weights(1, write_version(tmp_path, 1))
    versions: list[int] = []
    async for chunk in source.generate(request(0)):
        versions.extend(chunk.versions)
        if len(versions) == 10:
            await source.load_weights(2, write_version(tmp_path, 2))
    assert versions == [1] * 10 + [2] * 20
    assert await source.score([1, 2, 3]) == [-0.5, -2.0]
    await source.close()


async def test_an_abort_ends_running_and_waiting_requests(version_dir: Path) -> None:
    pace = ManualPace()
    source = engine(pace, lengths=ReplayLengths(0, given=(30,)), slots=1)
    await source.start()
    await source.load_weights(1, version_dir)
    pace.running.clear()
    tasks = [asyncio.create_task(collect(source, request(row))) for row in range(2)]
    await eventually(lambda: source.stats().waiting == 1)
    for row in range(2):
        await source.abort(f"{row}/0")
    assert [chunks[-1].finish_reason for _, _, chunks in await asyncio.gather(*tasks)] == ["abort", "abort"]
    assert source.stats().running == source.stats().waiting == 0
    await source.close()


async def test_closing_ends_requests_with_an_error(version_dir: Path) -> None:
    pace = ManualPace()
    source = engine(pace, lengths=ReplayLengths(0, given=(30,)))
    await source.start()
    await source.load_weights(1, version_dir)
    pace.running.clear()
    task = asyncio.create_task(collect(source, request(0)))
    await eventually(lambda: source.stats().running == 1)
    await source.close()
    with pytest.raises(EngineError, match="closed"):
        await task


async def test_nothing_is_generated_before_weights_are_loaded() -> None:
    source = engine(ManualPace(), lengths=ReplayLengths(0))
    await source.start()
    with pytest.raises(EngineError, match="no weights"):
        await collect(source, request(0))
    await source.close()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), row=st.integers(0, 10_000), index=st.integers(0, 63), cut=st.integers(0, 60))
def test_tokens_depend_on_seed_row_index_and_position_alone(seed: int, row: int, index: int, cut: int) -> None:
    tokens = ReplayTokens(seed, range(10, 200))
    whole = tokens.draw(row, index, 0, 60)
    first, second = tokens.draw(row, index, 0, cut), tokens.draw(row, index, cut, 60)
    assert (first[0] + second[0], first[1] + second[1]) == whole
    assert all(-4.0 <= value < 0.0 for value in whole[1])
    assert ReplayLengths(seed)(row, index) == ReplayLengths(seed)(row, index) >= 1


def test_log_normal_lengths_have_their_median() -> None:
    lengths = ReplayLengths(0, median_tokens=100.0, sigma=0.5)
    values = sorted(lengths(row, index) for row in range(200) for index in range(4))
    assert 90 < values[len(values) // 2] < 110
    assert values[0] < 40 < 200 < values[-1]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_lengths_come_from_a_file_by_row_and_index(tmp_path: Path, suffix: str) -> None:
    rows = [{"row": 0, "index": 1, "tokens": 20}, {"row": 0, "index": 0, "tokens": 10}, {"row": 5, "tokens": 7}]
    path = tmp_path / f"lengths.{suffix}"
    if suffix == "csv":
        path.write_text("row,index,tokens\n0,1,20\n0,0,10\n5,,7\n")
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    lengths = read_lengths(path, seed=0)
    assert [lengths(0, index) for index in range(3)] == [10, 20, 10]
    assert lengths(5, 9) == 7
    assert lengths(1, 0) in (10, 20, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [("row,length\n0,5\n", "entry 1 has no `tokens`"), ("tokens\nmany\n", "'many'; write a whole"), ("", "no rows")],
)
def test_a_wrong_file_of_lengths_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_lengths(path, seed=0)
    with pytest.raises(UserError, match="cannot read"):
        read_lengths(tmp_path / "absent.csv", seed=0)
