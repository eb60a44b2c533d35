"""KV blocks of a modelled engine: who holds how many, what siblings share, when the cache is full.

Contexts grow by a token a step, all together, so that (context - steps) modulo the block size never changes for a
decoding request: a count of requests by that phase says who needs a block next, without looking at any of them.
"""

from math import ceil

from drumroll_planner.sim.request import Request

BLOCK_TOKENS = 16


class Blocks:
    """See the module. Without a capacity only what siblings share is kept."""

    __slots__ = ("_groups", "_phases", "_share", "free", "limited", "total")

    def __init__(self, kv_tokens: int | None, *, share_prefix: bool) -> None:
        self.limited = kv_tokens is not None
        self.total = 0 if kv_tokens is None else kv_tokens // BLOCK_TOKENS
        self.free = self.total
        self._share = share_prefix
        self._groups: dict[object, int] = {}
        """Running requests of each group."""
        self._phases = [0] * BLOCK_TOKENS

    def could_hold(self, request: Request) -> bool:
        """Whether an empty cache has room for the whole of it."""
        return not self.limited or ceil((request.prompt + request.length) / BLOCK_TOKENS) <= self.total

    def fits(self, request: Request) -> bool:
        """Whether it can be admitted now: prompt, what exists of the answer, and the token that prefill ends with."""
        return not self.limited or self._needed(request) <= self.free

    def admit(self, request: Request) -> int:
        """Take its blocks; tokens of its prompt that a sibling has in the cache already."""
        if self.limited:
            self.free -= self._needed(request)
        group = request.group
        if group is None:
            return 0
        siblings = self._groups.get(group, 0)
        self._groups[group] = siblings + 1
        return self._shared(request) * BLOCK_TOKENS if siblings else 0

    def release(self, request: Request, held: int) -> None:
        """Give back what a request of `held` tokens has; the shared part only with its last sibling."""
        shared, group = 0, request.group
        if group is not None:
            self._groups[group] -= 1
            if self._groups[group]:
                shared = self._shared(request)
            else:
                del self._groups[group]
        if self.limited:
            self.free += ceil(held / BLOCK_TOKENS) - shared

    def decodes(self, context: int, steps: int, count: int) -> None:
        """A request of this context begins (1) or ends (-1) to decode, after so many steps of the engine."""
        self._phases[(context - steps) % BLOCK_TOKENS] += count

    def growth(self, decoding: int, done: int, steps: int) -> int:
        """Blocks that all decoding requests need for their next `steps` tokens, after `done` steps of the engine."""
        whole, rest = divmod(steps, BLOCK_TOKENS)
        first = -done % BLOCK_TOKENS
        return whole * decoding + sum(self._phases[(first - step) % BLOCK_TOKENS] for step in range(rest))

    def steps_with_room(self, decoding: int, done: int, steps: int) -> int:
        """At most `steps`, and no more than the free blocks allow."""
        if self.free >= decoding * (steps // BLOCK_TOKENS + 1):
            return steps
        low = min(steps, self.free // decoding * BLOCK_TOKENS)
        while low < steps and self.growth(decoding, done, low + 1) <= self.free:
            low += 1
        return low

    def _shared(self, request: Request) -> int:
        """Whole blocks of the prompt; its last token is computed anew, for the answer's first."""
        return (request.prompt - 1) // BLOCK_TOKENS if self._share else 0

    def _needed(self, request: Request) -> int:
        total = ceil((request.prompt + request.done + 1) / BLOCK_TOKENS)
        return total - self._shared(request) if request.group in self._groups else total
