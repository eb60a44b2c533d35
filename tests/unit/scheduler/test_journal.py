"""The journal says for how long the store has failed (case X6)."""

import asyncio

from drumroll_planner import records as r
from drumroll_scheduler.journal import Journal

from drumroll.clock import ManualClock
from drumroll.errors import StoreUnavailable
from drumroll.testing import eventually


class Ledger:
    """Takes entries unless it fails."""

    incarnation = 1

    def __init__(self) -> None:
        self.failing = False
        self.tries = 0
        self.taken: list[bytes] = []

    async def append(self, data: bytes, *, sync: bool) -> int:
        self.tries += 1
        if self.failing:
            raise StoreUnavailable("READONLY")
        self.taken.append(data)
        return len(self.taken)

    async def write_snapshot(self, data: bytes, upto_seq: int) -> None: ...

    async def check(self) -> None: ...


async def nothing_lost() -> None:
    raise AssertionError("the ledger is there")


async def test_x6_a_failing_store_is_told_until_shortly_after_it_takes_entries_again() -> None:
    ledger, clock = Ledger(), ManualClock()
    journal = Journal(ledger, tail=[], last_seq=0, clock=clock)
    running = asyncio.create_task(journal.run(lambda: None, nothing_lost))
    assert journal.store_failing_s is None
    ledger.failing = True
    journal.add([r.Noted("Test", "first")])
    await eventually(lambda: ledger.tries >= 1)
    clock.advance(3.0)
    seen = ledger.tries
    await eventually(lambda: ledger.tries >= seen + 2)
    assert journal.store_failing_s == 3.0
    ledger.failing = False
    await journal.durable()
    clock.advance(4.0)
    assert journal.store_failing_s == 7.0
    clock.advance(2.0)
    assert journal.store_failing_s is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
