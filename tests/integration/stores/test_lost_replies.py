"""The reply to every third write gets lost (case X2): each ticket is accepted once, orphans are counted."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from drumroll.embedded import EmbeddedStore
from drumroll.faults import LossyProxy, command_name, every, message_end
from drumroll.ledger import Ledger
from drumroll.samples import EntryKind, SampleId
from drumroll.store import retrying
from drumroll.stream import EntryRef, SampleStream

NUM_TICKETS = 60


async def test_each_ticket_is_accepted_once_and_orphans_are_counted_x2(store: EmbeddedStore) -> None:
    reports: asyncio.Queue[tuple[int, EntryRef]] = asyncio.Queue()
    async with (
        LossyProxy(store.settings.port, every(3, "XADD")) as rollouts,
        LossyProxy(store.settings.port, every(3, "EVAL")) as scheduler,
    ):
        todo = iter(range(NUM_TICKETS))
        streams = [SampleStream(store.connect("rollout", port=rollouts.port), "job-1") for _ in range(4)]
        redis = store.connect("scheduler", port=scheduler.port)
        ledger = await retrying(lambda: Ledger.open(redis, "job-1"), deadline_s=10.0)
        started = time.monotonic()
        await asyncio.gather(*(roll_out(stream, todo, reports) for stream in streams))
        accepted = await accept(ledger, reports)
        assert time.monotonic() - started < 60.0
        assert rollouts.lost >= NUM_TICKETS // 3
        assert scheduler.lost >= NUM_TICKETS // 3
    journal = (await Ledger.open(store.connect("scheduler"), "job-1")).entries
    assert [data for _, data in journal] == [f"{ticket} {ref.entry_id}".encode() for ticket, ref in accepted]
    assert sorted(ticket for ticket, _ in accepted) == list(range(NUM_TICKETS))
    stream = SampleStream(store.connect("scheduler"), "job-1")
    entries = await stream.read([ref for _, ref in accepted])
    assert [entry.sample.ordinal for entry in entries] == [ticket for ticket, _ in accepted]
    assert await stream.delete([ref.entry_id for _, ref in accepted]) == NUM_TICKETS
    assert await stream.trim("9" * 15 + "-0") == rollouts.lost


async def roll_out(stream: SampleStream, todo: Iterator[int], reports: asyncio.Queue[tuple[int, EntryRef]]) -> None:
    for ticket in todo:
        ref = await retrying(
            lambda: stream.add(
                sample=SampleId(0, ticket, 0, 0),  # noqa: B023 - awaited before the next turn
                lease_id="l",
                kind=EntryKind.SAMPLE,
                payload=b"x" * 10_000,
            ),
            deadline_s=10.0,
            first_pause_s=0.01,
        )
        # A report may be repeated as well.
        for _ in range(1 + ticket % 2):
            reports.put_nowait((ticket, ref))


async def accept(ledger: Ledger, reports: asyncio.Queue[tuple[int, EntryRef]]) -> list[tuple[int, EntryRef]]:
    """As the scheduler: the first report of a ticket is final; journaled before it counts."""
    accepted: dict[int, EntryRef] = {}
    while not reports.empty():
        ticket, ref = reports.get_nowait()
        if ticket not in accepted:
            data = f"{ticket} {ref.entry_id}".encode()
            await retrying(lambda: ledger.append(data, sync=True), deadline_s=10.0, first_pause_s=0.01)  # noqa: B023
            accepted[ticket] = ref
    return list(accepted.items())


def test_the_proxy_finds_where_messages_end() -> None:
    whole = b"*2\r\n$4\r\nxadd\r\n$3\r\na\r\n\r\n"
    assert message_end(whole) == len(whole)
    assert [message_end(whole[:cut]) for cut in range(len(whole))] == [None] * len(whole)
    assert command_name(whole) == "XADD"
    for reply in (b"+OK\r\n", b"-ERR x\r\n", b":5\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n"):
        assert message_end(b"zz" + reply + b"+", 2) == 2 + len(reply)


@pytest.mark.parametrize("foreign", [b"_\r\n", b"GET x\r\n"])
def test_the_proxy_refuses_what_is_not_its_protocol(foreign: bytes) -> None:
    with pytest.raises(ValueError, match="not RESP2"):
        message_end(foreign)
