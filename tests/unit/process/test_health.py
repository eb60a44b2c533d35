"""What a process answers the kubelet."""

import asyncio
import contextlib
import urllib.error
import urllib.request

import pytest

from drumroll import environment
from drumroll.embedded import free_port
from drumroll.health import answer_in_thread, answering
from drumroll.testing import eventually_sync


async def ask(port: int | None, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return answer


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: pod\r\n\r\n".encode()


async def test_a_process_lives_and_is_ready_or_says_why_not() -> None:
    reasons: list[str] = []
    async with answering(lambda: reasons[0] if reasons else None, port=free_port()) as port:
        assert (await ask(port, get("/livez"))).startswith("HTTP/1.1 200 ")
        assert (await ask(port, get("/readyz?verbose"))).startswith("HTTP/1.1 200 ")
        reasons.append("it drains")
        refusal = await ask(port, get("/readyz"))
        assert refusal.startswith("HTTP/1.1 503 ")
        assert refusal.endswith("it drains\n")
        assert (await ask(port, get("/livez"))).startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize("request_", [b"POST /livez HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"x\r\n\r\n"])
async def test_anything_else_is_not_here(request_: bytes) -> None:
    async with answering(lambda: None, port=free_port()) as port:
        assert (await ask(port, request_)).startswith("HTTP/1.1 404 ")


async def test_a_caller_that_talks_nonsense_or_goes_away_does_no_harm() -> None:
    async with answering(lambda: None, port=free_port()) as port:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /li")
            writer.close()
            await writer.wait_closed()
        with contextlib.suppress(OSError):
            await ask(port, b"\x00" * 200_000 + b"\r\n\r\n")
        assert (await ask(port, get("/livez"))).startswith("HTTP/1.1 200 ")


async def test_nobody_listens_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRUMROLL_HEALTH_PORT", raising=False)
    async with answering(lambda: None) as port:
        assert port is None


def test_of_the_ranks_of_a_pod_the_first_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMROLL_HEALTH_PORT", "8081")
    assert environment.health_port() == 8081
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert environment.health_port() is None


def test_a_thread_answers_while_the_process_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("DRUMROLL_HEALTH_PORT", str(port))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    reasons = ["it waits for the model"]
    answer_in_thread(lambda: reasons[0] if reasons else None)

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return int(error.code)
        except OSError:
            return 0

    eventually_sync(lambda: status("/livez") == 200, 10.0)
    assert status("/readyz") == 503
    reasons.clear()
    assert status("/readyz") == 200
