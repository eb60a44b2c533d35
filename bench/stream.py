"""Stream and ledger on the embedded store: MB/s of samples added and read by id, and journal appends a second.

    python bench/stream.py [--samples 4000] [--tokens 1500]

The samples also go through an in-memory asyncio queue in the same run: what is left when nothing is kept, checked or
shared between processes. Takes under 20 s.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from drumroll.embedded import EmbeddedStore
from drumroll.ledger import Ledger
from drumroll.samples import (
    EntryKind,
    FinishReason,
    Limits,
    SampleId,
    SamplePayload,
    Sampling,
    decode,
    encode,
    make_sequence,
    segments_from_versions,
)
from drumroll.stream import EntryRef, SampleStream

UID = "bench"
ADDERS = 16
STEP = 512


def make_payload(tokens: int) -> SamplePayload:
    sequence = make_sequence(
        prompt_ids=range(200),
        completion_ids=range(tokens),
        logprobs=[-0.5] * tokens,
        segments=segments_from_versions([3] * tokens, replica="rollout-0", instance="i"),
        finish_reason=FinishReason.STOP,
    )
    return SamplePayload((sequence,), Sampling(1.0), row=0, actual_tokens=tokens)


async def through_stream(store: EmbeddedStore, payload: bytes, number: int) -> tuple[float, float]:
    """Seconds to add all, and to read all back in steps."""
    refs: list[EntryRef] = []
    todo = iter(range(number))
    rollout = SampleStream(store.connect("rollout"), UID)

    async def add() -> None:
        for ordinal in todo:
            sample = SampleId(0, ordinal, 0, 0)
            refs.append(await rollout.add(sample=sample, lease_id="l", kind=EntryKind.SAMPLE, payload=payload))

    started = time.perf_counter()
    await asyncio.gather(*(add() for _ in range(ADDERS)))
    added = time.perf_counter()
    trainer = SampleStream(store.connect("trainer"), UID)
    for start in range(0, number, STEP):
        await trainer.read(refs[start : start + STEP])
    return added - started, time.perf_counter() - added


async def through_queue(payload: bytes, number: int) -> float:
    """Seconds to put and get all."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def put(count: int) -> None:
        for _ in range(count):
            queue.put_nowait(bytes(bytearray(payload)))
            await asyncio.sleep(0)

    started = time.perf_counter()
    adders = [asyncio.ensure_future(put(number // ADDERS)) for _ in range(ADDERS)]
    for _ in range(number // ADDERS * ADDERS):
        await queue.get()
    await asyncio.gather(*adders)
    return time.perf_counter() - started


async def appends_per_second(ledger: Ledger, *, sync: bool, seconds: float) -> float:
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        await ledger.append(b"x" * 300, sync=sync)
        count += 1
    return count / seconds


def codec_rate(payload: SamplePayload, seconds: float) -> float:
    """MB/s of encoding and decoding."""
    limits = Limits(1 << 20, 1 << 20)
    size = len(encode(payload))
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        decode(encode(payload), limits)
        count += 1
    return count * size / seconds / 1e6


async def measure(number: int, tokens: int) -> None:
    sample = make_payload(tokens)
    payload = encode(sample)
    megabytes = number * len(payload) / 1e6
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedStore(Path(directory), UID, max_bytes=2 << 30) as store:
            added, read = await through_stream(store, payload, number)
            started = time.perf_counter()
            usage = await SampleStream(store.connect("scheduler"), UID).usage()
            asked = time.perf_counter() - started
            ledger = await Ledger.open(store.connect("scheduler"), UID)
            plain = await appends_per_second(ledger, sync=False, seconds=1.5)
            synced = await appends_per_second(ledger, sync=True, seconds=1.5)
    queued = await through_queue(payload, number)
    print(f"{number} samples of {len(payload)} bytes, {ADDERS} at a time, appendfsync always")
    print(f"  add                 {megabytes / added:8.0f} MB/s  {number / added:8.0f} samples/s")
    print(f"  read by id          {megabytes / read:8.0f} MB/s  {number / read:8.0f} samples/s")
    print(f"  end to end          {megabytes / (added + read):8.0f} MB/s")
    print(f"  asyncio queue       {megabytes / queued:8.0f} MB/s  (keeps nothing, checks nothing, one process)")
    print(f"  encode + decode     {codec_rate(sample, 1.0):8.0f} MB/s")
    print(f"  usage()             {asked * 1000:8.2f} ms for {usage.entries} entries")
    print(f"  memory over payload {usage.bytes / number / len(payload) - 1:8.1%}")
    print(f"journal appends       {plain:8.0f} /s without sync, {synced:.0f} /s with sync")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=1500)
    values = parser.parse_args()
    asyncio.run(measure(values.samples, values.tokens))
