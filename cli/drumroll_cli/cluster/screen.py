"""The console that tables are printed on."""

import sys

from rich.console import Console

PIPE_WIDTH = 160
"""Columns where nobody sees them: a table in a file is not folded to a terminal's width."""


def console() -> Console:
    """Standard output; wide where it is no terminal. Messages of others are shown as they are, never read as markup."""
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
