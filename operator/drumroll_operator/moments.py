"""Times in a status: whole seconds, UTC; plans reckon in Unix seconds."""

from datetime import UTC, datetime


def moment(at: float) -> datetime:
    """A status's form of a time."""
    return datetime.fromtimestamp(int(at), UTC)


def seconds(at: datetime) -> float:
    """Unix seconds."""
    return at.timestamp()
