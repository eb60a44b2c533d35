"""One sample in a modelled engine, and what an engine can log of its steps."""

from math import inf

LogEntry = tuple[float, int, int, int, int, float]
"""(end, steps, decoding, context before, tokens prefilled, pairs of prefill tokens and tokens before them)."""


class Request:
    """One sample in an engine. Mutable; owned by the engine that it was added to."""

    __slots__ = (
        "ctx",
        "done",
        "finish",
        "group",
        "key",
        "left",
        "length",
        "prompt",
        "running",
        "started_at",
        "ticket",
        "token_at",
    )

    def __init__(self, key: object, prompt: int, length: int, *, done: int = 0, group: object = None) -> None:
        """`done`: tokens of the answer made elsewhere; `group`: samples with the same one share their prompt's KV."""
        self.key = key
        self.prompt = prompt
        self.length = length
        self.done = done
        """Tokens of the answer that exist; while it decodes, those at its first token here."""
        self.group = group
        self.ticket = -1
        """Dispatch-order index, where a fleet sent it."""
        self.finish = -1
        """Step count at which it ends; -1 while it does not decode."""
        self.left = 0
        """Tokens that are still to be prefilled."""
        self.ctx = 0
        """Tokens prefilled so far."""
        self.running = False
        self.started_at = inf
        self.token_at = inf
        """When its first token here was made."""
