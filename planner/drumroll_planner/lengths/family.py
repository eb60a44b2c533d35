"""A generated family of answer lengths with a long tail, for benchmarks and tests where there is no data.

    log length = level + effect of the prompt + noise of the answer (+ a run-on, more often for long prompts)

With the defaults about three quarters of the variance of log length lie between prompts, as in sampled maths answers,
and the longest tenth of the answers holds more than two fifths of all tokens.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_STREAM = 0x66616D


@dataclass(frozen=True, slots=True)
class LongTail:
    """See the module."""

    median: float = 400.0
    between: float = 0.75
    """Standard deviation of log length between prompts."""
    within: float = 0.4
    """Among the answers of a prompt."""
    run_on: float = 0.012
    """Share of answers that run on, two to seven times as long."""
    limit: int = 16_384

    def draw(self, num_prompts: int, width: int, *, seed: int) -> npt.NDArray[np.int32]:
        """Lengths in tokens [prompts, width]; the same for a seed."""
        generator = np.random.Generator(np.random.PCG64([seed, _STREAM]))
        effect = generator.normal(0.0, self.between, (num_prompts, 1))
        noise = generator.normal(0.0, self.within, (num_prompts, width))
        chance = self.run_on * np.exp(effect - self.between**2 / 2)
        longer = generator.uniform(0.7, 2.0, noise.shape) * (generator.random(noise.shape) < chance)
        return np.asarray(np.clip(self.median * np.exp(effect + noise + longer), 1, self.limit), dtype=np.int32)
