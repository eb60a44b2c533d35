"""`python -m drumroll.data`: an init container that prepares the job's data set, unless that has been done."""

import logging
import sys
from pathlib import Path

from drumroll import logs
from drumroll.data import prepare
from drumroll.environment import read_identity
from drumroll.errors import EXIT_OK, EXIT_USER, UserError
from drumroll.farewell import leave_words
from drumroll.job import ResolvedJob
from drumroll.signals import end_on_sigterm

logger = logging.getLogger("drumroll.data")


def main() -> int:
    """Exit code: 0 done, 2 the user's mistake."""
    end_on_sigterm()
    try:
        identity = read_identity()
        logs.set_up(identity.name)
        job = ResolvedJob.load(identity.job_file)
        layout = job.layout
        # dataset.json is written last, so it stands for all of it.
        if not (Path(layout.data_dir) / "dataset.json").exists():
            info = prepare(
                job.spec,
                model_dir=Path(layout.model_dir),
                source_dir=Path(layout.source_dir),
                out_dir=Path(layout.data_dir),
            )
            logger.info("prepared %d prompts, digest %s", info.num_prompts, info.digest)
    except UserError as error:
        logger.error("%s", error)
        leave_words(str(error))
        return EXIT_USER
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
