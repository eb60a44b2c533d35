"""Which entries of the sample stream are needed, their bytes, and which may be deleted."""

ENTRY_BYTES = 192
"""What an entry takes in the store beside its payload: header, id, and the server's own books (120 to 190 measured)."""


def entry_order(entry_id: str) -> tuple[int, int]:
    """Sort key of a stream id such as "1732999999999-0"."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


class Entries:
    """Derived from the durable state; what is released here is not: deleting again after a restart is harmless."""

    def __init__(self) -> None:
        self.needed: dict[str, int] = {}
        self.released: dict[str, int] = {}
        self.num_bytes = 0
        """In the store, of entries that are needed or not deleted yet."""
        self.newest = "0-0"
        """Newest entry ever reported (durable: `snapshot` keeps it)."""

    def need(self, entry_id: str, payload_bytes: int) -> None:
        if entry_id in self.needed:
            return
        num_bytes = payload_bytes + ENTRY_BYTES
        self.num_bytes += num_bytes - self.released.pop(entry_id, 0)
        self.needed[entry_id] = num_bytes
        if entry_order(entry_id) > entry_order(self.newest):
            self.newest = entry_id

    def release(self, entry_id: str) -> None:
        num_bytes = self.needed.pop(entry_id, None)
        if num_bytes is not None:
            self.released[entry_id] = num_bytes

    def deleted(self, entry_id: str) -> None:
        self.num_bytes -= self.released.pop(entry_id, 0)
