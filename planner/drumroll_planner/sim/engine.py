"""One modelled engine: continuous batching, chunked prefill, KV blocks, shared prompts, preemption, weight loads.

All running sequences advance in lockstep, one token a step, and the context grows by as many tokens, so that n steps
take, in closed form,

    n * base(b) + kv_s * (n * kv + b * n * (n - 1) / 2)

and only arrivals, first tokens, finishes and a full KV cache are events. Steps that prefill are walked one by one.
The clock stands at a step's end; it may be ahead of the caller's time by the step that is under way.
"""

import heapq
from collections import deque
from math import ceil, inf, sqrt

from drumroll.errors import UserError
from drumroll_planner.costs import CostModel
from drumroll_planner.sim.blocks import BLOCK_TOKENS, Blocks
from drumroll_planner.sim.request import LogEntry, Request


class Engine:
    """See the module. Call `advance` with non-decreasing times; `next_time` says when something happens by itself."""

    def __init__(
        self,
        costs: CostModel,
        *,
        max_concurrent: int,
        chunk_tokens: int = 8192,
        kv_tokens: int | None = None,
        share_prefix: bool = True,
        now: float = 0.0,
    ) -> None:
        """`chunk_tokens`: tokens of a step, decode and prefill together; `kv_tokens`: capacity, None is unlimited."""
        self._costs = costs
        self._bases = costs.bases(max_concurrent)
        self._kv_s = costs.kv_s
        self._slots = max_concurrent
        self._chunk_tokens = max(chunk_tokens, max_concurrent + 1)
        self._blocks = Blocks(kv_tokens, share_prefix=share_prefix)
        self._running: dict[Request, None] = {}
        self._prefilling: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._heap: list[tuple[int, int, Request]] = []
        self._sequence = 0
        self._decoding = 0
        self._kv = 0
        self._steps = 0
        self.time = now
        self.busy_s = 0.0
        self.finished: deque[tuple[float, Request]] = deque()
        self.log: list[LogEntry] | None = None
        """What each stretch of steps did, where somebody wants to know: set it to a list."""
        self.num_preemptions = 0
        self.num_prefill_tokens = 0
        self.num_tokens = 0

    # -- from outside --------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_tokens(self) -> int:
        """Context of the decoding requests, in tokens."""
        return self._kv

    def add(self, now: float, request: Request) -> None:
        """The request joins at the end of the step that is under way.

        Raises:
            UserError: it can never fit into the KV cache.
        """
        if self.time < now:
            self.advance(now)
            if self.time < now:
                self.time = now
        if not self._blocks.could_hold(request):
            raise UserError(
                f"kv_tokens: {self._blocks.total * BLOCK_TOKENS} cannot hold one sample of {request.prompt} prompt "
                f"and {request.length} answer tokens"
            )
        self._waiting.append(request)

    def pause(self, now: float, seconds: float) -> float:
        """Stand still for `seconds` after the step that is under way; the time at which it goes on."""
        self.advance(now)
        self.time = max(self.time, now) + seconds
        return self.time

    def progress(self, request: Request) -> int:
        """Tokens of the answer that exist."""
        if request.finish < 0:
            return request.done
        return request.length - (request.finish - self._steps)

    def remove(self, now: float, request: Request) -> int:
        """Take a request out, with what it is; tokens of the answer that exist."""
        self.advance(now)
        done = self.progress(request)
        if request.running:
            self._stop(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        else:
            # It ended in the step that is under way, or nobody was told yet.
            self.finished = deque(entry for entry in self.finished if entry[1] is not request)
        return done

    def next_time(self) -> float:
        """When the next finish or the next admission comes about, if nothing is added; infinity where nothing runs."""
        if self.finished:
            return self.finished[0][0]
        if self._prefilling or (self._waiting and self._may_admit()):
            return self.time
        if not self._decoding:
            return inf
        return self.time + self._seconds(self._steps_to_event())

    def advance(self, now: float) -> None:
        """Take all steps that begin before `now`; finished requests are in `finished` with the end of their step."""
        while self.time < now:
            if self._waiting:
                self._admit()
            if self._prefilling:
                self._mixed_step()
            elif self._decoding:
                self._decode(now)
            else:
                return

    def begin(self) -> None:
        """Begin the next step, where there is something to prefill or to admit: it can take nobody else any more."""
        if self._waiting:
            self._admit()
        if self._blocks.limited and not self._prefilling and self._decoding and not self._steps_to_event():
            self._preempt()
        if self._prefilling:
            self._mixed_step()

    # -- steps ---------------------------------------------------------------------------------------------------

    def _seconds(self, steps: int) -> float:
        """Time of so many steps with the sequences that decode now."""
        count = self._decoding
        return steps * (self._bases[count] + self._kv_s * (self._kv + count * (steps - 1) * 0.5))

    def _steps_to_event(self) -> int:
        """Steps to the next finish, or to the one that the KV cache has no room for."""
        heap = self._heap
        while heap[0][2].finish != heap[0][0]:
            heapq.heappop(heap)
        steps = heap[0][0] - self._steps
        if self._blocks.limited:
            return self._blocks.steps_with_room(self._decoding, self._steps, steps)
        return steps

    def _decode(self, now: float) -> None:
        steps = self._steps_to_event()
        if steps == 0:
            self._preempt()
            return
        seconds = self._seconds(steps)
        if self.time + seconds > now:
            steps = min(steps, self._steps_within(now - self.time))
            seconds = self._seconds(steps)
        self._take(steps, seconds)

    def _steps_within(self, seconds: float) -> int:
        """Steps that begin within so much time: the positive root of the closed form, rounded up."""
        half = 0.5 * self._kv_s * self._decoding
        first = self._bases[self._decoding] + self._kv_s * self._kv
        linear = first - half
        if half * seconds > 1e-12 * linear * linear:
            steps = ceil((sqrt(linear * linear + 4.0 * half * seconds) - linear) / (2.0 * half))
        else:
            steps = ceil(seconds / first)
        steps = max(1, steps)
        while steps > 1 and self._seconds(steps - 1) >= seconds:
            steps -= 1
        return steps

    def _take(self, steps: int, seconds: float, prefilled: int = 0, pairs: float = 0.0) -> None:
        """All decoding sequences get `steps` tokens."""
        if self._blocks.limited:
            self._blocks.free -= self._blocks.growth(self._decoding, self._steps, steps)
        if self.log is not None:
            self.log.append((self.time + seconds, steps, self._decoding, self._kv, prefilled, pairs))
        self._steps += steps
        self._kv += self._decoding * steps
        self.num_tokens += self._decoding * steps
        self.time += seconds
        self.busy_s += seconds
        self._collect()

    def _collect(self) -> None:
        """Move out what ends at this step."""
        heap, steps = self._heap, self._steps
        while heap and heap[0][0] <= steps:
            finish, _, request = heapq.heappop(heap)
            if request.finish == finish:
                self._stop(request)
                request.done = request.length
                self.finished.append((self.time, request))

    def _mixed_step(self) -> None:
        """One step that prefills from the queue's head and decodes beside it."""
        blocks = self._blocks
        while blocks.limited and blocks.growth(self._decoding, self._steps, 1) > blocks.free:
            self._preempt()
        budget = self._chunk_tokens - self._decoding
        costs, queue = self._costs, self._prefilling
        seconds = self._bases[self._decoding] + self._kv_s * self._kv + (costs.chunk_s if queue else 0.0)
        complete = []
        prefilled, all_pairs = 0, 0.0
        while queue and budget > 0:
            request = queue[0]
            tokens = min(request.left, budget)
            budget -= tokens
            prefilled += tokens
            all_pairs += tokens * request.ctx + tokens * (tokens - 1) * 0.5
            request.left -= tokens
            request.ctx += tokens
            if request.left:
                break
            complete.append(queue.popleft())
        self.num_prefill_tokens += prefilled
        seconds += costs.prefill_s * prefilled + costs.prefill_pair_s * all_pairs
        self._take(1, seconds, prefilled, all_pairs)
        for request in complete:
            self._first_token(request)
        if complete:
            self._collect()

    def _first_token(self, request: Request) -> None:
        """A prefill ends with the request's next token."""
        request.done += 1
        request.token_at = min(request.token_at, self.time)
        self.num_tokens += 1
        request.finish = self._steps + request.length - request.done
        request.left = 0
        self._sequence += 1
        heapq.heappush(self._heap, (request.finish, self._sequence, request))
        context = request.prompt + request.done
        self._decoding += 1
        self._kv += context
        if self._blocks.limited:
            self._blocks.decodes(context, self._steps, 1)

    # -- admission and KV ----------------------------------------------------------------------------------------

    def _may_admit(self) -> bool:
        return len(self._running) < self._slots and self._blocks.fits(self._waiting[0])

    def _admit(self) -> None:
        """From the head of the queue, as long as there is room; never past one that has none."""
        while self._waiting and self._may_admit():
            request = self._waiting.popleft()
            request.ctx = self._blocks.admit(request)
            request.left = request.prompt + request.done - request.ctx
            request.running = True
            request.started_at = min(request.started_at, self.time)
            self._running[request] = None
            self._prefilling.append(request)

    def _stop(self, request: Request) -> None:
        """The request leaves the batch; its KV is free."""
        done = self.progress(request)
        held = request.prompt + done
        if request.finish >= 0:
            self._decoding -= 1
            self._kv -= held
            if self._blocks.limited:
                self._blocks.decodes(held, self._steps, -1)
        else:
            self._prefilling.remove(request)
            held += 1
        request.finish = -1
        request.done = done
        request.running = False
        del self._running[request]
        self._blocks.release(request, held)

    def _preempt(self) -> None:
        """Throw out the request that was admitted last; it is computed anew, from the head of the queue."""
        victim = next(reversed(self._running))
        self._stop(victim)
        self.num_preemptions += 1
        self._waiting.appendleft(victim)
