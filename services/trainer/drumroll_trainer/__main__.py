"""`python -m drumroll_trainer`: one rank of a job's trainer."""

import argparse
import logging
import sys

from drumroll import logs
from drumroll.environment import read_identity, variable
from drumroll.errors import EXIT_FENCED, EXIT_INTERNAL, EXIT_USER, DrumrollError, Fenced, UserError
from drumroll.farewell import leave_words
from drumroll.job import ResolvedJob
from drumroll.signals import end_on_sigterm
from drumroll_trainer.launcher import end_with_launcher

logger = logging.getLogger("drumroll_trainer")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What the command line lets a resume change."""
    parser = argparse.ArgumentParser(prog="python -m drumroll_trainer", description=__doc__)
    parser.add_argument("--accept-data-change", action="store_true", help="go on with other data than the checkpoint's")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run this rank to the job's end; the exit code."""
    given = arguments(argv)
    end_with_launcher()
    end_on_sigterm()
    logs.set_up(f"trainer-{variable('RANK', '0')}")
    try:
        job = ResolvedJob.load(read_identity().job_file)
        # torch takes seconds to import: not before the job is known to be one.
        from drumroll_trainer.process import run

        run(job, accept_data_change=given.accept_data_change)
    except Fenced as error:
        logger.warning("replaced: %s", error)
        return EXIT_FENCED
    except UserError as error:
        logger.error("%s", error)
        leave_words(str(error))
        return EXIT_USER
    except DrumrollError as error:
        logger.error("%s: %s", type(error).__name__, error)
        leave_words(f"{type(error).__name__}: {error}")
        return EXIT_INTERNAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
