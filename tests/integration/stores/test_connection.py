"""Connections to a real Valkey: health, credentials, failures, and no secret in any of their words (case S4)."""

import logging
import traceback
from pathlib import Path

import pytest

from drumroll.embedded import EmbeddedStore, free_port
from drumroll.errors import DrumrollError, JobError, ProtocolError, StoreUnavailable, UserError
from drumroll.faults import Fate, LossyProxy
from drumroll.job import ResolvedJob
from drumroll.samples import EntryKind, SampleId
from drumroll.store import address, check, command, commands, connect, connect_to, retrying
from drumroll.stream import SampleStream

SECRET = "sentinel-9f3c"


async def test_the_embedded_store_is_sound(store: EmbeddedStore) -> None:
    health = await check(store.connect("scheduler"))
    assert (health.appendonly, health.appendfsync, health.eviction) == (True, "always", "noeviction")
    assert health.problems == ()


async def test_a_store_that_evicts_is_reported(store: EmbeddedStore) -> None:
    await command(store.connect("admin"), "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "evicts (allkeys-lru)" in (await check(store.connect("scheduler"))).problems[0]


async def test_a_store_that_does_not_tell_is_reported(store: EmbeddedStore) -> None:
    health = await check(store.connect("trainer"))
    assert health.appendonly is None
    assert "cannot be read" in health.problems[0]


async def test_no_secret_in_any_word_s4(store: EmbeddedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(SECRET)
    wrong.write_text(f"{SECRET}-not")
    await command(store.connect("admin"), "ACL", "SETUSER", "rollout", f">{SECRET}")
    words = []
    good = connect_to(store.url, username="rollout", password_file=right)
    assert await command(good, "PING")
    words += [repr(good), repr(good.connection_pool), str(good.connection_pool.connection_kwargs)]
    dead = f"redis://127.0.0.1:{free_port()}"
    for url, file, kind in ((store.url, wrong, UserError), (dead, right, StoreUnavailable)):
        client = connect_to(url, username="rollout", password_file=file)
        with pytest.raises(kind) as caught:
            await command(client, "PING")
        assert address(client) in str(caught.value)
        words.append("".join(traceback.format_exception(caught.value)))
        await client.aclose()
    await good.aclose()
    assert SECRET not in "".join(words) + caplog.text
    assert address(good) in caplog.text


async def test_the_job_says_who_connects_where(store: EmbeddedStore, tmp_path: Path) -> None:
    job = job_of(store, {"rollout": str(store.password_files["rollout"])})
    client = connect(job, "rollout")
    assert await command(client, "PING")
    await client.aclose()
    with pytest.raises(UserError, match="no store password file for the role 'trainer'"):
        connect(job, "trainer")
    with pytest.raises(JobError):
        ResolvedJob.load(tmp_path / "none.json")


async def test_a_store_of_one_s_own_has_a_user_of_its_own(store: EmbeddedStore, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "username").write_text("scheduler\n")
    (tmp_path / "secret" / "password").write_bytes(store.password_files["scheduler"].read_bytes())
    job = job_of(store, {"rollout": str(tmp_path / "secret" / "password")}, url=store.url)
    client = connect(job, "rollout")
    assert (await check(client)).appendonly
    await client.aclose()


def job_of(store: EmbeddedStore, files: dict[str, str], url: str | None = None) -> ResolvedJob:
    return ResolvedJob.model_validate(
        {
            "uid": "job-1",
            "name": "j",
            "namespace": "default",
            "spec": {
                "model": {"path": "m"},
                "data": {"train": {"path": "d"}},
                "reward": {"type": "math"},
                "stream": {} if url is None else {"url": url, "secretRef": "s"},
            },
            "layout": {"jobDir": "j", "dataDir": "d", "modelDir": "m", "sourceDir": "s"},
            "endpoints": {"scheduler": "127.0.0.1:1", "store": store.url},
            "secrets": {"storePasswordFiles": files},
        }
    )


async def test_nothing_is_sent_twice_behind_the_caller_s_back(store: EmbeddedStore) -> None:
    seen = []

    def judge(name: str) -> Fate:
        seen.append(name)
        return Fate.LOSE_REPLY if name == "XADD" else Fate.PASS

    async with LossyProxy(store.settings.port, judge) as proxy:
        stream = SampleStream(store.connect("rollout", port=proxy.port), "job-1")
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await stream.add(sample=SampleId(0, 0, 0, 0), lease_id="l", kind=EntryKind.SAMPLE, payload=b"x")
    assert seen.count("XADD") == 1


async def test_an_error_in_a_pipeline_is_raised_after_all_was_done(store: EmbeddedStore) -> None:
    client = store.connect("scheduler")
    stream = SampleStream(client, "job-1")
    with pytest.raises(ProtocolError, match="refuses a call"):
        await commands(client, [("XADD", stream.key, "0-0", "a", "b"), ("XADD", stream.key, "*", "a", "b")])
    assert (await stream.usage()).entries == 1


async def test_retrying_gives_up_at_the_deadline_and_lets_other_errors_through() -> None:
    calls = []

    async def fails(kind: type[DrumrollError]) -> int:
        calls.append(kind)
        raise kind("no")

    with pytest.raises(StoreUnavailable):
        await retrying(lambda: fails(StoreUnavailable), deadline_s=0.1, first_pause_s=0.01)
    assert 2 <= len(calls) < 20
    with pytest.raises(ProtocolError):
        await retrying(lambda: fails(ProtocolError), deadline_s=5.0)
    assert calls.count(ProtocolError) == 1


async def test_a_stalled_store_is_found_by_its_silence(store: EmbeddedStore) -> None:
    async with LossyProxy(store.settings.port, lambda name: Fate.STALL if name == "PING" else Fate.PASS) as proxy:
        client = store.connect("rollout", port=proxy.port, timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await command(client, "PING")
