"""A real store for each test, on a port and in a directory of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drumroll.embedded import EmbeddedStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    async with EmbeddedStore(tmp_path, "job-1") as running:
        yield running
