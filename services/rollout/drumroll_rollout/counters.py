"""What a replica counts. Every token that it generates ends in exactly one of the token counters."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Since the start of the process."""

    samples_total: int = 0
    """Accepted by the scheduler."""
    tokens_reported: int = 0
    """In accepted samples."""
    tokens_handed_over: int = 0
    """In partial entries that the scheduler took back."""
    tokens_unwanted: int = 0
    """Of leases that the scheduler aborted or refused, or that were still out at the job's end."""
    tokens_spoiled: int = 0
    """Of bad samples, and of answers whose reward could not be had."""
    tokens_lost: int = 0
    """All others: what a drain did not manage to hand over, and tokens of refused weights."""
    bad_samples_total: int = 0
    reward_errors_total: int = 0
    engine_errors_total: int = 0
    store_retries_total: int = 0
    reward_seconds: float = 0.0

    def gauges(self) -> dict[str, float]:
        """By name, for heartbeats."""
        return {name: float(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return " ".join(f"{name}={value:g}" for name, value in asdict(self).items())
