"""The errors that Drumroll raises on purpose.

    DrumrollError
    |-- UserError (ValueError)          the user's mistake: exit code 2
    |   |-- JobError                    a field of the job file
    |   |-- DataError                   rows of a data set
    |   `-- RewardError                 the user's reward function
    |-- TemporaryError                  may go away by itself: retry
    |   |-- StoreUnavailable            the store does not answer
    |   |-- SchedulerUnavailable        the scheduler does not answer
    |   |-- WeightsNotVisible           an announced version is not (wholly) there yet
    |   `-- VolumeFull                  no space left where weights or checkpoints go
    |-- Fenced                          a newer incarnation has taken over: exit at once
    |-- StoreLost                       the store answers, but its contents are gone
    |-- SampleLost                      entries that a decision names are gone or damaged
    |-- CorruptError (ValueError)       bytes that are not what they must be: refused, never repaired
    |-- ProtocolError                   a call that breaks the protocol
    `-- JobFailed                       the job cannot go on; the message is the last word

Everything else that is raised is a defect of ours: exit code 1.
"""


class DrumrollError(Exception):
    """Base of all errors that Drumroll raises on purpose."""


class UserError(DrumrollError, ValueError):
    """The user's mistake. The message says what to write instead."""


class JobError(UserError):
    """A field of a job file is wrong."""


class DataError(UserError):
    """Rows of a data set are wrong."""


class RewardError(UserError):
    """The user's reward function does not keep its contract."""


class TemporaryError(DrumrollError):
    """May go away by itself."""


class StoreUnavailable(TemporaryError):
    """The store does not answer."""


class SchedulerUnavailable(TemporaryError):
    """The scheduler does not answer."""


class WeightsNotVisible(TemporaryError):
    """A version is not, or not wholly, visible: a slow volume, or nobody has published it."""


class VolumeFull(TemporaryError):
    """No space is left on a volume."""


class Fenced(DrumrollError):
    """A newer incarnation has taken over; the holder of the old one exits."""


class StoreLost(DrumrollError):
    """The store answers, but what it held is gone."""


class SampleLost(DrumrollError):
    """Entries of the sample stream that were asked for by id are gone or damaged."""

    def __init__(self, message: str, entry_ids: tuple[str, ...]) -> None:
        super().__init__(message)
        self.entry_ids = entry_ids
        """All of them, in the order in which they were asked for."""


class CorruptError(DrumrollError, ValueError):
    """Bytes that are not what they must be."""


class ProtocolError(DrumrollError):
    """A call that breaks the protocol: a wrong job, an unknown value, a stale epoch."""


class JobFailed(DrumrollError):
    """The job cannot go on."""


EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USER = 2
EXIT_FENCED = 75
"""A process that was replaced; its supervisor starts no new one for it."""
