"""Reading an engine's answer so that the request ends with the reader, however the reader ends."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from drumroll_rollout.engine import Chunk, Engine, GenerationRequest


@asynccontextmanager
async def answer(engine: Engine, request: GenerationRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
    """The chunks of a request; on the way out the iterator is closed, which an exception alone does not do."""
    chunks = engine.generate(request)
    try:
        yield chunks
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
