"""The operator's own times: how long it waits for what. Values of the job (deadlines, budgets) are the job's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds each."""

    progress_write_s: float = 10.0
    """Progress alone is written to the status no more often than this."""
    apply_again_s: float = 600.0
    """Children are written again at this age, so that what was deleted or changed by hand comes back."""
    apply_stuck_s: float = 60.0
    """The same where a pod waits for a volume or a Secret."""
    stuck_creating_s: float = 120.0
    """A pod that is bound and waits for its containers longer than this has a named problem."""
    retry_first_s: float = 5.0
    """Wait after an action's first failure; it doubles."""
    retry_most_s: float = 60.0
    restart_first_s: float = 5.0
    """A charged pod's object is kept this long after its end before it is replaced; it doubles."""
    restart_most_s: float = 300.0
    short_life_s: float = 30.0
    """A pod that was disrupted sooner than this after its creation is replaced with a delay."""
    short_life_delay_s: float = 15.0
    finish_s: float = 60.0
    """What the scheduler gets to end after a trainer or replica that said it was done."""
    leave_s: float = 15.0
    """What workers of a complete job get to end by themselves, so that their pods and logs stay."""
    overdue_s: float = 30.0
    """A pod that is still there so long after its grace is on a lost node: deleted by force."""
    broken_set_grace_s: int = 15
    """Grace of a trainer pod whose set has lost a member: it can do nothing useful without the others."""
    unanswered_s: float = 30.0
    """A scheduler that does not answer for so long is not ready."""
    progressing_s: float = 600.0
    """Without a step or a sample for so long the job does not progress."""
