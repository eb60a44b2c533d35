"""What things cost: the time of a decode step, of a prefill, of weight loads and of the trainer's steps.

A decode step with b running sequences that hold kv tokens of context takes

    decode(b, kv) = base(b) + kv_s * kv

where base comes from a table at small batches, interpolated, and goes on with the slope `sequence_s` behind its last
entry. A straight line alone is wrong where it matters: tails run at 1 to 4 sequences. A step that also prefills n
tokens of prompts takes `chunk_s + prefill_s * n` longer, and `prefill_pair_s` per (token, token of context before it).
"""

import json
import math
from bisect import bisect_right
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from drumroll.errors import UserError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class FitError:
    """How well a fit agrees with what it was fitted to: relative errors of single measurements."""

    median: float
    p90: float
    count: int


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of one replica and of the trainer; all times in seconds."""

    name: str = "unnamed"
    source: str = ""
    """Where the numbers are from."""
    table: tuple[tuple[int, float], ...] = ()
    """(running sequences, seconds of a step without context), ascending; interpolated in between."""
    step_s: float = 0.0
    """base(b) = step_s + sequence_s * b where there is no table."""
    sequence_s: float = 0.0
    """Each further sequence, beyond the table."""
    kv_s: float = 0.0
    """Each token of context of the running sequences."""
    prefill_s: float = 0.0
    """Each prompt token."""
    prefill_pair_s: float = 0.0
    """Each pair of a prompt token and a token before it: attention over long prompts."""
    chunk_s: float = 0.0
    """Each step that prefills anything."""
    publish_pause_s: float = 0.0
    """A replica stands still this long when it loads weights."""
    train_step_s: float = 0.0
    """Each optimizer step, whatever is in it."""
    train_token_s: float = 0.0
    """Each token of prompt and answer that is trained, packed."""
    train_padded_s: float = 0.0
    """Each token of a padded micro-batch, padding included; used where micro-batches are padded."""
    publish_s: float = 0.0
    """The trainer writes one version of the weights."""
    checkpoint_s: float = 0.0
    """The trainer writes one checkpoint."""
    errors: tuple[tuple[str, FitError], ...] = ()
    """Error of each fit: ("decode", …), ("prefill", …), ("train", …)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float | int) and not (math.isfinite(value) and value >= 0):
                raise UserError(f"costs: {field.name} is {value}; write a number of seconds, 0 or more")
        batches = [batch for batch, _ in self.table]
        times = [seconds for _, seconds in self.table]
        if batches != sorted(set(batches)) or (batches and batches[0] < 1):
            raise UserError(f"costs: table has batch sizes {batches}; write ascending ones from 1")
        if any(not (math.isfinite(seconds) and seconds >= 0) for seconds in times):
            raise UserError(f"costs: table has times {times}; write numbers of seconds, 0 or more")

    def base(self, batch: int) -> float:
        """Seconds of a decode step of `batch` sequences without any context; a pure prefill counts as a batch of 1."""
        batch = max(batch, 1)
        if not self.table:
            return self.step_s + self.sequence_s * batch
        batches = [known for known, _ in self.table]
        place = bisect_right(batches, batch)
        if place == len(batches):
            return self.table[-1][1] + self.sequence_s * (batch - batches[-1])
        above, seconds_above = self.table[place]
        if place == 0:
            return seconds_above
        below, seconds_below = self.table[place - 1]
        return seconds_below + (seconds_above - seconds_below) * (batch - below) / (above - below)

    def bases(self, up_to: int) -> list[float]:
        """base(0), base(1), …, base(up_to)."""
        return [self.base(batch) for batch in range(up_to + 1)]

    def decode(self, batch: int, kv_tokens: float) -> float:
        """Seconds of one decode step."""
        return self.base(batch) + self.kv_s * kv_tokens

    def prefill(self, tokens: int, *, before: int = 0) -> float:
        """Seconds that a step takes longer because it also prefills `tokens` tokens with `before` ahead of them."""
        if tokens <= 0:
            return 0.0
        pairs = tokens * before + tokens * (tokens - 1) / 2
        return self.chunk_s + self.prefill_s * tokens + self.prefill_pair_s * pairs

    def train(self, tokens: float, *, padded: float | None = None) -> float:
        """Seconds of an optimizer step over `tokens` tokens; `padded`: tokens with padding, where it is padded."""
        if padded is None:
            return self.train_step_s + self.train_token_s * tokens
        return self.train_step_s + self.train_padded_s * padded

    def scaled(self, factor: float) -> "CostModel":
        """The same model with everything that a replica does taking `factor` times as long."""
        names = ("step_s", "sequence_s", "kv_s", "prefill_s", "prefill_pair_s", "chunk_s", "publish_pause_s")
        table = tuple((batch, seconds * factor) for batch, seconds in self.table)
        return replace(self, table=table, **{name: getattr(self, name) * factor for name in names})

    def with_trainer(
        self, *, step_s: float = 0.0, token_s: float = 0.0, padded_s: float = 0.0, publish_s: float = 0.0
    ) -> "CostModel":
        """The same replica with another trainer."""
        return replace(self, train_step_s=step_s, train_token_s=token_s, train_padded_s=padded_s, publish_s=publish_s)

    def to_json(self) -> str:
        """Round-trips through `from_json` exactly."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "CostModel":
        """Read what `to_json` wrote; left-out fields get their defaults.

        Raises:
            UserError: it is not a cost model; the message names the field.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UserError(f"costs: not JSON: {error}") from error
        if not isinstance(data, dict):
            raise UserError("costs: expects an object with the fields of a cost model")
        if data.pop("format", FORMAT) != FORMAT:
            raise UserError(f"costs: another format than {FORMAT}: measure again with `drumroll profile`")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(data.keys() - known):
            raise UserError(f"costs: {unknown[0]} is not a field; fields are {', '.join(sorted(known))}")
        return cls(**{name: _read(name, value) for name, value in data.items()})


def _read(name: str, value: Any) -> Any:
    try:
        if name == "table":
            return tuple((int(batch), float(seconds)) for batch, seconds in value)
        if name == "errors":
            return tuple((str(fit), FitError(**error)) for fit, error in value)
        return str(value) if name in ("name", "source") else float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"costs: {name} is {value!r}, which it cannot be: {error}") from error
