"""The normal distribution on arrays: cumulative, inverse, and the moments beyond a cut. numpy only."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SQRT_2PI = float(np.sqrt(2.0 * np.pi))
_TAIL = 6.0
"""Beyond so many deviations the hazard is taken from its asymptotic series."""


def density(z: Floats) -> Floats:
    """Of the standard normal."""
    return np.asarray(np.exp(-0.5 * z * z) / _SQRT_2PI)


def survival(z: Floats) -> Floats:
    """P(Z > z), to a relative error below 2e-7 (a Chebyshev fit of erfc)."""
    x = np.abs(z) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * x)
    series = np.zeros_like(t)
    for coefficient in _ERFC:
        series = series * t + coefficient
    upper = 0.5 * t * np.exp(-x * x + series)
    return np.where(z >= 0, upper, 1.0 - upper)


_ERFC = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)


def hazard(z: Floats) -> Floats:
    """density / survival: the mean of Z beyond z (the inverse Mills ratio)."""
    far = np.maximum(z, _TAIL)
    near = np.minimum(z, _TAIL)
    return np.where(z > _TAIL, far + 1.0 / far - 2.0 / far**3, density(near) / survival(near))


def beyond(cut: Floats, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """(mean, variance) of a normal value that is known to be over `cut`: what a censored answer amounts to."""
    z = (cut - mean) / deviation
    rate = hazard(z)
    return mean + deviation * rate, deviation**2 * np.clip(1.0 + z * rate - rate**2, 0.0, 1.0)


def inverse(p: Floats) -> Floats:
    """The z with P(Z <= z) = p, by bisection to 1e-9."""
    low, high = np.full(np.shape(p), -9.0), np.full(np.shape(p), 9.0)
    for _ in range(36):
        middle = 0.5 * (low + high)
        below = 1.0 - survival(middle) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high))
