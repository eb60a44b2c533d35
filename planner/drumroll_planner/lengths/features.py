"""Ridge regression of log length on what is known of a prompt: its length, source, level and earlier reward.

Learned online from normal equations (27 x 27), forgetting slowly. 2 bytes a prompt, for the reward.
"""

import numpy as np
import numpy.typing as npt

from drumroll_planner.lengths.answers import Prompts

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_SOURCES = 16
_RIDGE = 4.0
_KEEP = 0.998
"""What is kept of the sums with each batch."""
NUM_FEATURES = 8 + _SOURCES


class Features:
    """See the module. Predicts effects: log length relative to the level."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._rewards = np.full(len(prompts), np.nan, np.float16)
        self._gram: Floats = np.zeros((NUM_FEATURES, NUM_FEATURES))
        self._moments: Floats = np.zeros(NUM_FEATURES)
        self._weights: Floats = np.zeros(NUM_FEATURES)

    @property
    def num_bytes(self) -> int:
        """Of the columns kept here."""
        return self._rewards.nbytes

    def predict(self, rows: Rows) -> Floats:
        """Effects of rows."""
        return self._matrix(rows) @ self._weights

    def observe(self, rows: Rows, effects: Floats, weights: Floats, rewards: npt.NDArray[np.float32]) -> None:
        """Learn from effects of rows, with the number of answers behind each."""
        matrix = self._matrix(rows)
        self._gram = _KEEP * self._gram + matrix.T @ (matrix * weights[:, None])
        self._moments = _KEEP * self._moments + matrix.T @ (effects * weights)
        solved = np.linalg.solve(self._gram + _RIDGE * np.eye(NUM_FEATURES), self._moments)
        self._weights = np.asarray(solved, dtype=np.float64)
        known = ~np.isnan(rewards)
        self._rewards[rows[known]] = rewards[known]

    def _matrix(self, rows: Rows) -> Floats:
        """Features of rows [rows, NUM_FEATURES]; the last ones stand for the source."""
        length = np.log(np.maximum(self._prompts.tokens[rows], 1).astype(np.float64)) - 5.0
        level, reward = self._prompts.level[rows].astype(np.float64), self._rewards[rows].astype(np.float64)
        matrix = np.zeros((len(rows), NUM_FEATURES))
        matrix[:, 0] = 1.0
        matrix[:, 1] = length
        matrix[:, 2] = length**2
        matrix[:, 3] = np.maximum(length, 0.0)
        matrix[:, 4] = ~np.isnan(level)
        matrix[:, 5] = np.clip(np.nan_to_num(level), -10.0, 10.0)
        matrix[:, 6] = ~np.isnan(reward)
        matrix[:, 7] = np.nan_to_num(np.clip(reward, -10.0, 10.0))
        matrix[np.arange(len(rows)), 8 + self._prompts.source[rows] % _SOURCES] = 1.0
        return matrix
