"""Cost models to start from, before `drumroll profile` has measured the real ones.

Decode and prefill figures: aiconfigurator-core 0.12.0 (Apache-2.0), fits a + b * sequences + c * KV tokens to measured
kernel times per GPU and model, and the time to prefill 2,048 and 8,192 tokens. Its single-sequence step time is the
table's first entry. Loads, publishing and training are round numbers for such a model, not measurements.
"""

from drumroll.errors import UserError
from drumroll_planner.costs import CostModel

_SOURCE = "aiconfigurator-core 0.12.0"

_FITS = {
    # name: a ms, b ms a sequence, c ms a million KV tokens, prefill of 2,048 ms, of 8,192 ms, step(1; 1k) ms, B params
    "a100-llama-3.1-8b": (10.901, 0.023, 81.141, 115.5, 534.7, 11.15, 8.0),
    "a100-qwen3-8b": (11.105, 0.026, 91.814, 117.0, 548.2, 11.38, 8.0),
    "a100-qwen2.5-7b": (10.389, 0.023, 37.789, 108.5, 457.2, 10.18, 7.6),
    "a100x2-qwen2.5-32b": (24.383, 0.073, 80.232, 277.4, 1133.0, 24.78, 32.5),
    "a100x4-qwen2.5-32b": (14.213, 0.056, 40.688, 172.8, 686.8, 14.28, 32.5),
    "h100-llama-3.1-8b": (6.062, 0.007, 44.869, 38.5, 183.9, 5.88, 8.0),
    "h100-qwen3-8b": (6.249, 0.007, 50.371, 38.8, 187.0, 6.06, 8.0),
    "h100-qwen2.5-7b": (5.718, 0.006, 18.686, 36.8, 169.4, 5.57, 7.6),
    "h100x2-qwen2.5-32b": (13.326, 0.027, 44.11, 108.5, 465.2, 13.02, 32.5),
    "h100x4-qwen2.5-32b": (7.758, 0.025, 22.212, 69.5, 290.1, 7.68, 32.5),
}

DEFAULT = "h100-qwen2.5-7b"


def preset_names() -> tuple[str, ...]:
    """Names that `preset` knows."""
    return tuple(_FITS)


def preset(name: str = DEFAULT) -> CostModel:
    """A cost model by name.

    Raises:
        UserError: there is none of this name.
    """
    if name not in _FITS:
        raise UserError(f"costs: there is no preset {name!r}; write a file of `drumroll profile`, or one of {_names()}")
    a, b, c, prefill_2048, prefill_8192, single, billions = _FITS[name]
    # In the mixed steps of the simulator the fixed part is paid by the decode step that the prefill rides on.
    # t(n) = a + p n + q n^2 / 2 through both measured prefills.
    short, long = (prefill_2048 - a) / 2048, (prefill_8192 - a) / 8192
    pair = max(0.0, 2 * (long - short) / (8192 - 2048))
    kv = 1024 * c * 1e-6
    return CostModel(
        name=name,
        source=_SOURCE,
        table=((1, (single - kv) * 1e-3), (4, (a + 4 * b) * 1e-3), (8, (a + 8 * b) * 1e-3)),
        sequence_s=b * 1e-3,
        kv_s=c * 1e-9,
        prefill_s=(short - pair * 2048 / 2) * 1e-3,
        prefill_pair_s=pair * 1e-3,
        publish_pause_s=0.15 * billions,
        train_step_s=0.5,
        # Six floating-point operations a parameter and token, at 40 % of eight GPUs of 400 TFLOP/s.
        train_token_s=6 * billions * 1e9 / (0.4 * 8 * 400e12),
        train_padded_s=6 * billions * 1e9 / (0.4 * 8 * 400e12),
        publish_s=0.1 * billions,
        checkpoint_s=1.0 * billions,
    )


def _names() -> str:
    return ", ".join(_FITS)
