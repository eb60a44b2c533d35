"""The client against a server that misbehaves on purpose: silence, old incarnations, transient and permanent errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from drumroll_operator.certificates import ServerCertificates, server_certificates, service_names
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server
from drumroll_scheduler.scripted_job import scripted_job
from hypothesis import given
from hypothesis import strategies as st

from drumroll import channels
from drumroll.errors import (
    DrumrollError,
    Fenced,
    JobError,
    JobFailed,
    ProtocolError,
    SchedulerUnavailable,
    StoreUnavailable,
    UserError,
)
from drumroll.job import ResolvedJob
from drumroll.rpc import SERVER_OPTIONS, SchedulerClient, read_token, retry_delay
from drumroll.rpc_status import AccessRefused, from_status, to_status

Answer = Callable[[pb.StatusRequest, Any], Any]


class Moody(SchedulerServicer):
    """Answers Status and Watch by a list of behaviours, the last one for ever."""

    def __init__(self) -> None:
        self.behaviours: list[Answer] = []
        self.requests: list[pb.StatusRequest] = []

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        self.requests.append(request)
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        reply: pb.StatusReply = await behaviour(request, context)
        return reply

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchReply]:  # noqa: N802
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        async for reply in behaviour(request, context):
            yield reply


def good(incarnation: int) -> Answer:
    async def answer(request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        reply = pb.StatusReply(phase="Running")
        reply.header.incarnation = incarnation
        return reply

    return answer


def refuse(error: DrumrollError) -> Answer:
    async def answer(request: pb.StatusRequest, context: Any) -> None:
        await context.abort(*to_status(error))

    return answer


async def silence(request: pb.StatusRequest, context: Any) -> None:
    await asyncio.sleep(60)


def make_job(directory: Path, port: int) -> ResolvedJob:
    return scripted_job(directory, store_url="redis://127.0.0.1:1", store_passwords={}, port=port)


@pytest.fixture
async def moody() -> AsyncIterator[tuple[Moody, int]]:
    servicer = Moody()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_SchedulerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, port
    await server.stop(None)


async def ask(directory: Path, moody: tuple[Moody, int], *behaviours: Answer, deadline_s: float = 10.0) -> list[Any]:
    """One status call; (the reply, the client)."""
    servicer, port = moody
    servicer.behaviours = list(behaviours)
    async with SchedulerClient(make_job(directory, port), "viewer", attempt_s=0.3) as client:
        return [await client.status(pb.StatusRequest(), deadline_s=deadline_s), client]


async def test_a_silent_attempt_and_a_restart_cost_attempts_under_one_request_id(
    tmp_path: Path, moody: tuple[Moody, int]
) -> None:
    reply, client = await ask(tmp_path, moody, silence, refuse(StoreUnavailable("not now")), good(3))
    requests = moody[0].requests
    assert reply.phase == "Running"
    assert client.incarnation == 3
    assert len(requests) == 3
    assert len({request.header.request_id for request in requests}) == 1
    assert requests[0].header.job_uid == "job-1"


async def test_a_reply_of_an_older_incarnation_is_refused_and_asked_again(
    tmp_path: Path, moody: tuple[Moody, int]
) -> None:
    servicer, port = moody
    servicer.behaviours = [good(5), good(4), good(4), good(6)]
    async with SchedulerClient(make_job(tmp_path, port), "viewer") as client:
        await client.status(pb.StatusRequest())
        reply = await client.status(pb.StatusRequest())
    assert reply.header.incarnation == 6
    assert servicer.requests[-1].header.incarnation == 5


async def test_a_replaced_scheduler_that_answers_for_ever_is_unavailable(
    tmp_path: Path, moody: tuple[Moody, int]
) -> None:
    servicer, port = moody
    servicer.behaviours = [good(5), good(4)]
    async with SchedulerClient(make_job(tmp_path, port), "viewer") as client:
        await client.status(pb.StatusRequest())
        with pytest.raises(SchedulerUnavailable, match="a replaced scheduler answered"):
            await client.status(pb.StatusRequest(), deadline_s=0.3)


@pytest.mark.parametrize(
    "error",
    [
        Fenced("stale trainer epoch 1"),
        ProtocolError("role has the unknown value 7"),
        AccessRefused("no token"),
        UserError("steps: write 1 or more"),
        JobFailed("all groups were equal"),
    ],
)
async def test_errors_cross_the_wire_as_they_are(
    tmp_path: Path, moody: tuple[Moody, int], error: DrumrollError
) -> None:
    with pytest.raises(type(error)) as caught:
        await ask(tmp_path, moody, refuse(error))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)


async def test_nobody_at_the_address_is_unavailable_after_the_deadline(tmp_path: Path) -> None:
    async with SchedulerClient(make_job(tmp_path, 1), "viewer") as client:
        with pytest.raises(SchedulerUnavailable, match=r"Status: no answer from the scheduler at 127\.0\.0\.1:1"):
            await client.status(pb.StatusRequest(), deadline_s=0.3)


async def test_a_watch_goes_on_over_a_broken_stream_and_ends_with_the_servers(
    tmp_path: Path, moody: tuple[Moody, int]
) -> None:
    def stream(*incarnations: int, broken: bool) -> Any:
        async def answer(request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchReply]:
            for incarnation in incarnations:
                reply = pb.WatchReply()
                reply.header.incarnation = incarnation
                yield reply
            if broken:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

        return answer

    servicer, port = moody
    servicer.behaviours = [stream(1, 2, broken=True), stream(1, 3, broken=False)]
    async with SchedulerClient(make_job(tmp_path, port), "viewer") as client:
        seen = [reply.header.incarnation async for reply in client.watch(pb.WatchRequest())]
    assert seen == [1, 2, 3]


async def test_a_silent_watch_is_unavailable(tmp_path: Path, moody: tuple[Moody, int]) -> None:
    async def hang(request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchReply]:
        await asyncio.sleep(60)
        yield pb.WatchReply()

    servicer, port = moody
    servicer.behaviours = [hang]
    async with SchedulerClient(make_job(tmp_path, port), "viewer") as client:
        with pytest.raises(SchedulerUnavailable, match="silence"):
            async for _ in client.watch(pb.WatchRequest(), deadline_s=0.2):
                pass


def test_a_missing_or_empty_token_is_the_job_files_mistake(tmp_path: Path) -> None:
    job = make_job(tmp_path, 1)
    with pytest.raises(JobError, match="has no 'stranger'"):
        read_token(job, "stranger")
    Path(job.secrets.token_files["viewer"]).write_text(" \n")
    with pytest.raises(JobError, match="is empty"):
        read_token(job, "viewer")
    Path(job.secrets.token_files["viewer"]).unlink()
    with pytest.raises(JobError, match="cannot be read"):
        read_token(job, "viewer")


def test_codes_that_no_retry_can_mend_are_protocol_errors_and_others_are_retried() -> None:
    assert isinstance(from_status(grpc.StatusCode.UNIMPLEMENTED, "what?"), ProtocolError)
    assert isinstance(from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, None), ProtocolError)
    assert from_status(grpc.StatusCode.UNAVAILABLE, "Socket closed") is None
    assert from_status(grpc.StatusCode.INTERNAL, None) is None
    code, detail = to_status(DrumrollError("something"))
    assert from_status(code, detail) is None


@given(attempt=st.integers(0, 10_000), draw=st.floats(0, 1, exclude_max=True))
def test_delays_grow_to_a_ceiling_and_are_spread(attempt: int, draw: float) -> None:
    assert 0.025 <= retry_delay(attempt, draw) <= 2.0
    assert retry_delay(attempt + 1, draw) >= retry_delay(attempt, draw)


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncIterator[tuple[Moody, int]]:
    """A scheduler whose certificate is for the Service of job `small`, with its authority in the folder."""
    made = certificates_of("a")
    (tmp_path / "ca.crt").write_text(made.authority)
    servicer = Moody()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_SchedulerServicer_to_server(servicer, server)
    port = channels.listen(server, "127.0.0.1:0", (made.certificate.encode(), made.key.encode()))
    await server.start()
    yield servicer, port
    await server.stop(None)


def certificates_of(seed: str) -> ServerCertificates:
    names = service_names("small", "team", ("scheduler",), "cluster.local")
    return server_certificates((seed * 32).encode(), subject="small", names=names, created=datetime.now(UTC))


async def ask_encrypted(
    directory: Path, moody: tuple[Moody, int], *, name: str = "small-scheduler.team.svc", ca: str | None = "ca.crt"
) -> pb.StatusReply:
    servicer, port = moody
    servicer.behaviours = [good(1)]
    job = make_job(directory, port)
    secrets = job.secrets.model_copy(update={"tls_ca_file": None if ca is None else str(directory / ca)})
    endpoints = job.endpoints.model_copy(update={"scheduler": f"{name}:50051"})
    job = job.model_copy(update={"secrets": secrets, "endpoints": endpoints})
    async with SchedulerClient(job, "viewer", address=f"127.0.0.1:{port}", attempt_s=2.0) as client:
        return await client.status(pb.StatusRequest(), deadline_s=3.0)


async def test_calls_are_encrypted_and_the_name_of_the_service_is_checked(
    tmp_path: Path, encrypted: tuple[Moody, int]
) -> None:
    assert (await ask_encrypted(tmp_path, encrypted)).phase == "Running"
    with pytest.raises(SchedulerUnavailable, match=r"Peer name|Hostname Verification|CERTIFICATE_VERIFY_FAILED"):
        await ask_encrypted(tmp_path, encrypted, name="other-scheduler.team.svc")


async def test_a_scheduler_of_another_authority_is_not_spoken_to(tmp_path: Path, encrypted: tuple[Moody, int]) -> None:
    (tmp_path / "other.crt").write_text(certificates_of("b").authority)
    with pytest.raises(SchedulerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await ask_encrypted(tmp_path, encrypted, ca="other.crt")
    assert not encrypted[0].requests


async def test_a_plain_caller_is_not_answered_by_an_encrypted_scheduler(
    tmp_path: Path, encrypted: tuple[Moody, int]
) -> None:
    with pytest.raises(SchedulerUnavailable):
        await ask_encrypted(tmp_path, encrypted, ca=None)
    assert not encrypted[0].requests


@pytest.mark.parametrize("missing", ["tlsCertFile", "tlsKeyFile"])
def test_half_an_identity_is_refused(missing: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, 1)
    (tmp_path / "one.pem").write_text("x")
    field = "tls_key_file" if missing == "tlsCertFile" else "tls_cert_file"
    half = job.model_copy(update={"secrets": job.secrets.model_copy(update={field: str(tmp_path / "one.pem")})})
    with pytest.raises(JobError, match="go together: write both, or neither"):
        channels.read_identity(half)
    assert channels.read_identity(job) is None
