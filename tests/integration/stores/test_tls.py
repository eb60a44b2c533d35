"""Stores that encrypt (case X8): what is trusted, what is refused, and what is told to be written instead."""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from drumroll_operator.certificates import ServerCertificates, server_certificates

from drumroll.api.loading import load_jobs
from drumroll.api.problems import InvalidJobs
from drumroll.embedded import EmbeddedStore, free_port
from drumroll.errors import StoreUnavailable, UserError
from drumroll.faults import Fate, LossyProxy
from drumroll.job import ResolvedJob
from drumroll.ledger import Ledger
from drumroll.samples import EntryKind, SampleId
from drumroll.store import Redis, check, command, connect, connect_to
from drumroll.stream import SampleStream


def certified(names: tuple[str, ...] = ("localhost",), *, seed: str = "a", days_old: int = 0) -> ServerCertificates:
    created = datetime.now(UTC) - timedelta(days=days_old)
    return server_certificates((seed * 32).encode(), subject="store", names=names, created=created)


@asynccontextmanager
async def encrypted(store: EmbeddedStore, folder: Path, certificates: ServerCertificates) -> AsyncIterator[LossyProxy]:
    """A TLS end before the store, and its authority in `folder`/ca.crt, as a mounted Secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show(context, folder, certificates)
    async with LossyProxy(store.settings.port, lambda _: Fate.PASS, context=context) as proxy:
        yield proxy


def show(context: ssl.SSLContext, folder: Path, certificates: ServerCertificates) -> None:
    """What a server shows from now on."""
    (folder / "tls.pem").write_text(certificates.certificate + certificates.key)
    (folder / "ca.crt").write_text(certificates.authority)
    context.load_cert_chain(folder / "tls.pem")


def client_of(store: EmbeddedStore, url: str, ca_file: Path | None = None) -> Redis:
    return connect_to(
        url, username="scheduler", password_file=store.password_files["scheduler"], ca_file=ca_file, timeout_s=5.0
    )


async def refusal(client: Redis) -> str:
    """The sentence of the user's mistake at the first call."""
    with pytest.raises(UserError) as caught:
        await command(client, "PING")
    await client.aclose()
    return str(caught.value)


async def test_x8_an_authority_of_one_s_own_works(store: EmbeddedStore, tmp_path: Path) -> None:
    async with encrypted(store, tmp_path, certified()) as end:
        job = job_of(store, f"rediss://localhost:{end.port}", tmp_path / "ca.crt")
        scheduler, rollout = connect(job, "scheduler"), connect(job, "rollout")
        assert (await check(scheduler)).problems == ()
        ledger = await Ledger.open(scheduler, "job-1")
        assert await ledger.append(b"entry" * 100_000, sync=True) == 1
        payload = bytes(range(256)) * 4096
        ref = await SampleStream(rollout, "job-1").add(
            sample=SampleId(0, 0, 0, 0), lease_id="l", kind=EntryKind.SAMPLE, payload=payload
        )
        (entry,) = await SampleStream(scheduler, "job-1").read([ref])
        assert entry.payload == payload
        await scheduler.aclose()
        await rollout.aclose()


async def test_x8_an_unknown_authority_is_refused_with_what_to_give(store: EmbeddedStore, tmp_path: Path) -> None:
    async with encrypted(store, tmp_path, certified()) as end:
        told = await refusal(client_of(store, f"rediss://localhost:{end.port}"))
    assert "an authority that is not known here" in told
    assert "ca.crt into a Secret and write its name as stream.caSecretRef" in told


async def test_x8_another_authority_is_refused_with_what_to_give(store: EmbeddedStore, tmp_path: Path) -> None:
    async with encrypted(store, tmp_path, certified()) as end:
        (tmp_path / "other.crt").write_text(certified(seed="b").authority)
        told = await refusal(client_of(store, f"rediss://localhost:{end.port}", tmp_path / "other.crt"))
    assert "not of the authorities in stream.caSecretRef" in told


async def test_x8_a_wrong_host_name_is_refused_with_what_to_give(store: EmbeddedStore, tmp_path: Path) -> None:
    async with encrypted(store, tmp_path, certified(("store.elsewhere",))) as end:
        told = await refusal(client_of(store, f"rediss://localhost:{end.port}", tmp_path / "ca.crt"))
    assert "of another host" in told
    assert "write in stream.url a name that the certificate holds" in told


async def test_x8_an_expired_certificate_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    async with encrypted(store, tmp_path, certified(days_old=4000)) as end:
        told = await refusal(client_of(store, f"rediss://localhost:{end.port}", tmp_path / "ca.crt"))
    assert "has expired" in told


async def test_x8_a_plain_address_of_a_tls_port_is_explained(store: EmbeddedStore, tmp_path: Path) -> None:
    async with encrypted(store, tmp_path, certified()) as end:
        told = await refusal(client_of(store, f"redis://localhost:{end.port}"))
    assert "speaks TLS: write rediss:// in stream.url" in told


async def test_x8_an_encrypted_address_of_a_plain_port_is_explained(store: EmbeddedStore) -> None:
    told = await refusal(client_of(store, f"rediss://127.0.0.1:{store.settings.port}"))
    assert "does not speak TLS: write redis:// in stream.url" in told


def test_x8_an_authority_for_a_plain_address_is_a_contradiction(store_files: dict[str, Path]) -> None:
    text = """\
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  model: {path: m}
  data: {train: {path: d}}
  reward: {type: math}
  stream: {url: "redis://store:6379", caSecretRef: store-ca}
"""
    with pytest.raises(InvalidJobs, match=r"stream\.caSecretRef .*write url: rediss://host:port, or leave caSecretRef"):
        load_jobs(text)
    with pytest.raises(UserError, match="is not encrypted, yet a certificate authority is given"):
        connect_to("redis://store:6379", username="u", password_file=store_files["p"], ca_file=store_files["ca"])


@pytest.mark.parametrize("content", [None, "", "no certificate\n"])
def test_a_file_without_authorities_is_refused(content: str | None, store_files: dict[str, Path]) -> None:
    ca = store_files["ca"]
    if content is not None:
        ca.write_text(content)
    with pytest.raises(UserError, match=r"holds no certificate authority.*needs a key ca\.crt"):
        connect_to("rediss://store:6379", username="u", password_file=store_files["p"], ca_file=ca)


async def test_a_store_that_is_not_there_is_waited_for_whatever_it_speaks(store: EmbeddedStore) -> None:
    for scheme in ("redis", "rediss"):
        client = client_of(store, f"{scheme}://127.0.0.1:{free_port()}")
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await command(client, "PING")
        await client.aclose()


async def test_a_certificate_that_goes_bad_while_the_job_runs_is_waited_out(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show(context, tmp_path, certified())
    async with LossyProxy(store.settings.port, lambda _: Fate.PASS, context=context) as end:
        client = client_of(store, f"rediss://localhost:{end.port}", tmp_path / "ca.crt")
        assert await command(client, "PING")
        authority = (tmp_path / "ca.crt").read_text()
        show(context, tmp_path, certified(seed="b"))
        (tmp_path / "ca.crt").write_text(authority)
        await client.connection_pool.disconnect()
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await command(client, "PING")
        show(context, tmp_path, certified())
        assert await command(client, "PING")
        await client.aclose()


async def test_no_secret_is_said_s4(store: EmbeddedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    password = store.password_files["scheduler"].read_text().strip()
    async with encrypted(store, tmp_path, certified()) as end:
        told = await refusal(client_of(store, f"redis://localhost:{end.port}"))
        told += await refusal(client_of(store, f"rediss://localhost:{end.port}"))
    assert password not in told + caplog.text


@pytest.fixture
def store_files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "password").write_text("p")
    return {"p": tmp_path / "password", "ca": tmp_path / "ca.crt"}


def job_of(store: EmbeddedStore, url: str, ca_file: Path) -> ResolvedJob:
    return ResolvedJob.model_validate(
        {
            "uid": "job-1",
            "name": "j",
            "namespace": "default",
            "spec": {
                "model": {"path": "m"},
                "data": {"train": {"path": "d"}},
                "reward": {"type": "math"},
                "stream": {"url": url, "secretRef": "s", "caSecretRef": "c"},
            },
            "layout": {"jobDir": "j", "dataDir": "d", "modelDir": "m", "sourceDir": "s"},
            "endpoints": {"scheduler": "127.0.0.1:1", "store": url},
            "secrets": {
                "storePasswordFiles": {role: str(file) for role, file in store.password_files.items()},
                "storeCaFile": str(ca_file),
            },
        }
    )
