"""Ranks under a launcher (torchrun) end with it: it starts each in a session of its own, so nobody else would end them,
and a trainer without its other ranks, or beside its successor, is of no use."""

import ctypes
import signal

from drumroll import environment

_PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """Be killed when the launcher dies; nothing where there is none."""
    if environment.variable("TORCHELASTIC_RUN_ID") is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
