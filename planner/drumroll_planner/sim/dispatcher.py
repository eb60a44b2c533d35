"""What a scheduler is to the fleet: the policy (`policy_run`), its rules at ticket level (`direct`), or a baseline."""

from typing import Protocol

from drumroll_planner.sim.request import Request

Chosen = list[tuple[int, int]]
"""Tickets of a step: (dispatch-order index, version of its oldest token)."""


class Dispatcher(Protocol):
    """Decides. Every method may look at the fleet; `dispatch` sends requests to it."""

    @property
    def finished(self) -> bool:
        """All steps are trained."""
        ...

    def joined(self, now: float, replica: int) -> None:
        """A replica is there, with the newest weights; also one that comes back."""
        ...

    def failed(self, now: float, replica: int) -> None:
        """A replica is gone; what it ran is lost, and nobody has told the scheduler."""
        ...

    def done(self, now: float, replica: int, request: Request) -> None:
        """An answer is complete."""
        ...

    def attested(self, now: float, replica: int, version: int) -> None:
        """A replica has loaded a version."""
        ...

    def announced(self, now: float, version: int) -> None:
        """A version is published."""
        ...

    def next_step(self, now: float, step: int) -> Chosen | None:
        """The tickets of a step, once they are decided."""
        ...

    def trained(self, now: float, step: int, *, covers: bool) -> None:
        """The trainer has committed a step; `covers`: with a checkpoint."""
        ...

    def timer(self, now: float) -> float | None:
        """Called at the time that it gave last (first at 0); when to call it again."""
        ...

    def dispatch(self, now: float) -> None:
        """Give out what may be given out."""
        ...
