"""The probe of the embedded store: light, and right."""

import subprocess
import sys
from pathlib import Path

import pytest

from drumroll.embedded import EmbeddedStore
from drumroll.ping import main, ping


async def test_a_store_that_answers_and_one_that_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with EmbeddedStore(tmp_path, "uid") as store:
        port, file = store.settings.port, store.password_files["scheduler"]
        arguments = [f"--port={port}", "--user=scheduler", f"--password-file={file}"]
        assert main(arguments) == 0
        assert ping(port, user="rollout", password="password-of-rollout") == "+PONG"
        assert main([*arguments[:1], f"--password-file={store.password_files['trainer']}"]) == 1
        assert "WRONGPASS" in capsys.readouterr().err
        await store.kill()
        assert main(arguments) == 1
        assert "does not answer" in capsys.readouterr().err


def test_the_probe_imports_nothing_heavy() -> None:
    code = "import drumroll.ping, sys; print([m for m in ('pydantic', 'redis', 'grpc', 'asyncio') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
