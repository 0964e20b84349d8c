"""Every exception that this package raises on purpose.

::

    SlurmResolverError
    ├── HostlistError          ValueError    a host list or a list of counts that cannot be read
    ├── EnvironmentValueError  RuntimeError  a variable is missing, or its value cannot be used
    │   ├── UnreadableValueError  ValueError  … its value cannot be read: a host list, a number
    │   └── NotInStepError                   this process was not started by srun
    ├── LayoutError            RuntimeError  where the ranks run is unknown or contradictory
    │   └── UnknownLayoutError               … but all tasks together know it
    ├── RendezvousError        RuntimeError  the tasks did not meet, or do not agree
    ├── JobsError              RuntimeError  the jobs do not fit the tasks of the step
    ├── AddressError           RuntimeError  an invalid port or host, or two equal addresses
    ├── GpuError               RuntimeError  GPU variables or counts that do not fit
    ├── LaunchError            RuntimeError  a command that cannot be started on this machine
    ├── KerasError             RuntimeError  a Keras that would train wrongly on several workers
    ├── FitError               RuntimeError  a fit of Keras 3 that cannot be one training
    ├── SavingError            RuntimeError  a model that another task does not finish saving
    └── ResumeError            RuntimeError  a training that cannot be saved or resumed

The built-in base beside each name is what TensorFlow's own resolver raises in that case, so that
``except`` clauses written for it keep working. An UnreadableValueError is a RuntimeError as well.

Messages follow one pattern: which variable or argument, the value it has, what was expected, and
what to do about it.
"""

from __future__ import annotations

from typing import Optional


class SlurmResolverError(Exception):
    """Base of all errors of this package."""


class HostlistError(SlurmResolverError, ValueError):
    """A host list (``n[1-3]``) or a list of counts (``2(x3),1``) that cannot be read.

    Attributes:
        expression: the whole text.
        part: the piece of it that is wrong.
    """

    def __init__(self, reason: str, expression: str, part: str) -> None:
        self.expression = expression
        self.part = part
        where = repr(_shorten(part))
        if part != expression:
            where += f" in {_shorten(expression)!r}"
        super().__init__(f"{where}: {reason}")


class EnvironmentValueError(SlurmResolverError, RuntimeError):
    """A variable that Slurm should have set is missing, or its value cannot be used."""


class UnreadableValueError(EnvironmentValueError, ValueError):
    """The value of one of Slurm's variables cannot be read: a host list, a number, an id."""


class NotInStepError(EnvironmentValueError):
    """This process was not started by srun, and so it has no rank."""


class LayoutError(SlurmResolverError, RuntimeError):
    """Where the ranks run cannot be known, or the variables contradict each other."""


class UnknownLayoutError(LayoutError):
    """The variables of one task do not tell where the ranks run, but all tasks together know it."""


class RendezvousError(SlurmResolverError, RuntimeError):
    """The tasks did not meet in time, or what they told each other does not agree.

    Attributes:
        unreached: whether this task has not reached the coordination service, so that the others
            may not raise the same error.
    """

    def __init__(self, message: str, unreached: bool = False) -> None:
        self.unreached = unreached
        super().__init__(message)


def find_rendezvous_error(error: BaseException) -> Optional[RendezvousError]:
    """Returns the RendezvousError that caused another error, or that it is; None without one."""
    cause: Optional[BaseException] = error
    while cause is not None and not isinstance(cause, RendezvousError):
        cause = cause.__cause__
    return cause


class JobsError(SlurmResolverError, RuntimeError):
    """The jobs that were asked for do not fit the tasks of the step."""


class AddressError(SlurmResolverError, RuntimeError):
    """A port outside 1..65535, an unusable host, or two tasks with the same address."""


class GpuError(SlurmResolverError, RuntimeError):
    """A GPU variable that cannot be read, or counts of GPUs that do not fit what Slurm granted."""


class LaunchError(SlurmResolverError, RuntimeError):
    """A command that cannot be started on this machine."""


class KerasError(SlurmResolverError, RuntimeError):
    """Keras would train wrongly on several workers, or cannot train this model there."""


class FitError(SlurmResolverError, RuntimeError):
    """The `fit` of the workers cannot be one training, or one of them has failed."""


class SavingError(SlurmResolverError, RuntimeError):
    """A model that another task has begun to save, and does not finish."""


class ResumeError(SlurmResolverError, RuntimeError):
    """A training that cannot be saved on a signal, or cannot go on where it was saved."""


def _shorten(text: str, limit: int = 200) -> str:
    """Keeps the ends of a long value, which must not fill the log."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} … {text[-limit // 2 :]}"
