"""`python -m drumroll_trainer.learner.launch ARGUMENTS`: torchrun, whose exit code says what its ranks' did.

torchrun itself ends with 1 however its ranks end; whoever looks after the trainer must tell a user's mistake from a
successor's arrival and from a crash.
"""

import signal
import sys
from collections.abc import Sequence

from drumroll.errors import EXIT_FENCED, EXIT_INTERNAL, EXIT_USER
from drumroll.signals import EXIT_TERMINATED, end_on_sigterm

_TELLING = (EXIT_USER, EXIT_FENCED)


def exit_code_of(codes: Sequence[int]) -> int:
    """The exit code for ranks that failed with these, the first to fail first; negative ones are signals.

    A rank that says what is wrong counts more than those that fell with it; one that torchrun ended says nothing.
    """
    telling = [code for code in codes if code in _TELLING]
    own = [code for code in codes if code != -signal.SIGTERM]
    chosen = [*telling, *own, *codes, EXIT_INTERNAL][0]
    return 128 - chosen if chosen < 0 else chosen


def main(arguments: Sequence[str]) -> int:
    """Run the ranks to their end; the exit code."""
    end_on_sigterm()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as run

    try:
        run(list(arguments))
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        return exit_code_of([failure.exitcode for failure in failures])
    except SignalException:
        return EXIT_TERMINATED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
