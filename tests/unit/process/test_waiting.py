"""Processes that start before the data set is there wait for it."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from drumroll.data.prepared import INFO_FILE
from drumroll.data.waiting import until_prepared


async def test_what_is_there_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / INFO_FILE).touch()
    assert await asyncio.wait_for(until_prepared(tmp_path), 1.0)


async def test_the_data_set_is_waited_for(tmp_path: Path) -> None:
    waiting = asyncio.create_task(until_prepared(tmp_path / "later"))
    await asyncio.sleep(0)
    assert not waiting.done()
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / INFO_FILE).touch()
    assert await asyncio.wait_for(waiting, 10.0)


async def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    assert not await asyncio.wait_for(until_prepared(tmp_path, unless=stop), 1.0)


async def test_patience_ends_and_the_reader_says_what_is_missing(tmp_path: Path) -> None:
    assert await asyncio.wait_for(until_prepared(tmp_path, patience_s=0.0), 1.0)


def test_the_first_process_of_a_container_ends_on_sigterm() -> None:
    """The kernel ignores signals to PID 1 that have no handler."""
    code = (
        "import os, signal, time; os.getpid = lambda: 1\n"
        "from drumroll.signals import end_on_sigterm\n"
        "end_on_sigterm(); print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    process.stdout.close()
