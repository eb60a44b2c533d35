import json
import logging
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from drumroll_trainer.checkpoints import COMPLETE, CheckpointStore, TrainerState, load
from drumroll_trainer.rehearsal import DATASET, make_job, other_data
from drumroll_trainer.start import ORIGIN, choose_start

from drumroll.errors import CorruptError, DataError, JobError

STATE = TrainerState(
    job_uid="job-1",
    step=10,
    version=10,
    lineage=0,
    chain="c" * 64,
    dataset=json.loads(json.dumps(asdict(DATASET))),
    learning_rate=0.01,
    world_size=1,
    rng_state="00",
)


def write(store: CheckpointStore, step: int, *, keep: int = 3, lineage: int = 0) -> Path:
    staging = store.stage(step)
    (staging / "__0_0.distcp").write_bytes(b"tensors" * 100)
    state = replace(STATE, step=step, version=step, lineage=lineage)
    return store.finish(staging, state, ledger_snapshot=None, keep=keep).path


def truncated(path: Path) -> None:
    file = path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:50])


def without_tensors(path: Path) -> None:
    (path / "__0_0.distcp").unlink()


def emptied(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(truncated, "50 bytes of 700"), (without_tensors, "is missing"), (emptied, "complete.json is missing")],
)
def test_half_a_checkpoint_is_passed_over_and_kept_until_a_newer_one_is_complete_w4(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object, reason: str
) -> None:
    store = CheckpointStore(tmp_path)
    write(store, 10)
    broken = write(store, 20)
    damage(broken)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        newest = store.newest()
    assert newest is not None
    assert newest.state.step == 10
    assert "step_000020 is passed over" in caplog.text
    assert reason in caplog.text
    assert broken.exists()
    write(store, 15)
    assert broken.exists()
    write(store, 20)
    assert load(broken).state.step == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000010", "step_000015", "step_000020"]


def test_flipped_bits_are_found_though_sizes_agree(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = write(store, 10)
    (path / "__0_0.distcp").write_bytes(b"tensorz" * 100)
    assert store.newest() is None
    with pytest.raises(CorruptError, match="another SHA-256"):
        load(path)


def test_a_checkpoint_that_was_complete_but_not_renamed_counts(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, 10)
    path = write(store, 20)
    path.rename(tmp_path / "step_000020.staging")
    newest = store.newest()
    assert newest is not None
    assert newest.state.step == 20
    assert store.stage(20).exists()
    assert load(path).state.step == 20
    path.rename(tmp_path / "step_000020.staging")
    again = store.newest()
    assert again is not None
    assert store.adopt(again).path == path


def test_the_newest_are_kept_and_the_first_of_a_resumed_job(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (0, 2, 4, 6, 8):
        write(store, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000000", "step_000006", "step_000008"]


def test_a_newer_lineage_wins_over_a_higher_step(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, 20)
    write(store, 12, lineage=1)
    newest = store.newest()
    assert newest is not None
    assert (newest.state.step, newest.state.lineage) == (12, 1)


def test_a_file_that_was_not_written_makes_a_checkpoint_incomplete(tmp_path: Path) -> None:
    path = write(CheckpointStore(tmp_path), 10)
    (path / "planted.pt").write_bytes(b"")
    with pytest.raises(CorruptError, match=r"planted\.pt"):
        load(path)
    (path / "planted.pt").unlink()
    listed = json.loads((path / COMPLETE).read_text())
    listed["files"]["../outside"] = {"size": 0, "sha256": ""}
    (path / COMPLETE).write_text(json.dumps(listed))
    with pytest.raises(CorruptError, match="not a plain file"):
        load(path)


def test_a_trainer_without_checkpoint_starts_at_the_origin(tmp_path: Path) -> None:
    start = choose_start(make_job(tmp_path, tmp_path), CheckpointStore(tmp_path / "none"), DATASET)
    assert (start.position, start.folder) == (ORIGIN, None)


@pytest.mark.parametrize(("rows", "digest"), [(3, "a" * 64), (65, "b" * 64), (64, "e" * 64)])
def test_other_data_is_refused_with_both_digests_and_counts_w6(tmp_path: Path, rows: int, digest: str) -> None:
    job = make_job(tmp_path, tmp_path)
    store = CheckpointStore(job.layout.checkpoints_dir)
    write(store, 2)
    with pytest.raises(DataError) as caught:
        choose_start(job, store, other_data(rows, digest))
    for part in ("64 rows", "d" * 16, f"{rows} rows", digest[:16], "resumeFrom"):
        assert part in str(caught.value)
    assert choose_start(job, store, DATASET).position.step == 2
    assert choose_start(job, store, other_data(rows, digest), accept_data_change=True).position.step == 2


def test_a_checkpoint_of_another_job_is_no_resume(tmp_path: Path) -> None:
    job = make_job(tmp_path, tmp_path, uid="job-2")
    store = CheckpointStore(job.layout.checkpoints_dir)
    write(store, 2)
    with pytest.raises(JobError, match="belongs to job job-1"):
        choose_start(job, store, DATASET)


@pytest.mark.parametrize("place", ["demo-job-1", "volume/default/demo-job-1"])
def test_resume_from_finds_the_newest_checkpoint_of_the_other_job(tmp_path: Path, place: str) -> None:
    other = CheckpointStore(tmp_path / "run" / place / "checkpoints")
    write(other, 2)
    newest = write(other, 4)
    job = make_job(tmp_path / "own", tmp_path, resumeFrom=str(tmp_path / "run"))
    start = choose_start(job, CheckpointStore(job.layout.checkpoints_dir), other_data(3, "a" * 64))
    assert (start.position, start.folder, start.covered) == (ORIGIN, newest, False)
    nowhere = make_job(tmp_path / "own", tmp_path, resumeFrom=str(tmp_path / "nothing"))
    with pytest.raises(JobError, match=r"resumeFrom: .* holds no complete checkpoint"):
        choose_start(nowhere, CheckpointStore(job.layout.checkpoints_dir), DATASET)
