"""The exceptions of this package.

::

    SlurmResolverError
    ├── HostlistError          ValueError    a host list or a list of counts is not valid
    ├── EnvironmentValueError  RuntimeError  a variable is missing, or its value cannot be used
    │   ├── UnreadableValueError  ValueError  … its value is not a host list, a number or an id
    │   └── NotInStepError                   this process has no rank
    ├── LayoutError            RuntimeError  the nodes of the ranks are unknown or contradictory
    │   └── UnknownLayoutError               … but all tasks together know them
    ├── RendezvousError        RuntimeError  the tasks did not meet, or do not agree
    ├── JobsError              RuntimeError  the jobs do not fit the tasks of the step
    ├── AddressError           RuntimeError  a port or host is not valid, or two addresses are equal
    ├── GpuError               RuntimeError  GPU variables or counts do not fit
    ├── LaunchError            RuntimeError  a command cannot start, or its options are not valid
    ├── StartError             RuntimeError  TensorFlow was started before the strategy
    ├── KerasError             RuntimeError  Keras would train incorrectly on several workers
    ├── FitError               RuntimeError  the workers' fit is not one training, or one failed
    ├── SavingError            RuntimeError  another task does not finish saving a model
    └── ResumeError            RuntimeError  a training cannot be saved or resumed

With the built-in base beside each name, ``except`` clauses that were written for TensorFlow's own
resolver keep working. An UnreadableValueError is also a RuntimeError.

If a variable or an argument is wrong, the message names it, its value and what was expected.
"""

from __future__ import annotations


class SlurmResolverError(Exception):
    """Base of all errors of this package."""


class HostlistError(SlurmResolverError, ValueError):
    """A host list (``n[1-3]``) or a list of counts (``2(x3),1``) is not valid.

    Its arguments are the reason, the whole text, and the part that is wrong.
    """

    def __str__(self) -> str:
        reason, expression, part = self.args
        where = repr(shorten_value(part))
        if part != expression:
            where += f" in {shorten_value(expression)!r}"
        return f"{where}: {reason}"


class EnvironmentValueError(SlurmResolverError, RuntimeError):
    """A variable that Slurm should set is missing, or its value cannot be used."""


class UnreadableValueError(EnvironmentValueError, ValueError):
    """A variable of Slurm's is not a host list, a number or an id, as expected."""


class NotInStepError(EnvironmentValueError):
    """This process has no rank: srun did not start it, or its variables were removed."""


class LayoutError(SlurmResolverError, RuntimeError):
    """The nodes of the ranks are unknown, or the variables contradict each other."""


class UnknownLayoutError(LayoutError):
    """One task's variables do not contain the nodes of the ranks; all tasks together know them."""


class RendezvousError(SlurmResolverError, RuntimeError):
    """The tasks did not meet in time, or do not agree.

    Attributes:
        unreached: whether this task did not reach the coordination service; the others may then
            not raise the same error.
    """

    def __init__(self, message: str, unreached: bool = False) -> None:
        self.unreached = unreached
        super().__init__(message)


def find_rendezvous_error(error: BaseException) -> RendezvousError | None:
    """Returns the RendezvousError in an error and its causes; None without one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, RendezvousError):
        cause = cause.__cause__
    return cause


class JobsError(SlurmResolverError, RuntimeError):
    """The jobs do not fit the tasks of the step."""


class AddressError(SlurmResolverError, RuntimeError):
    """A port or host is not valid, or two tasks have the same address."""


class GpuError(SlurmResolverError, RuntimeError):
    """A GPU variable is not valid, or counts of GPUs do not fit what Slurm granted."""


class LaunchError(SlurmResolverError, RuntimeError):
    """A command cannot be started on this machine, or its options are not valid."""


class StartError(SlurmResolverError, RuntimeError):
    """TensorFlow was started before the strategy, which has to do that."""


class KerasError(SlurmResolverError, RuntimeError):
    """Keras would train incorrectly on several workers, or cannot train this model there."""


class FitError(SlurmResolverError, RuntimeError):
    """The workers' `fit` is not one training, or one worker has failed.

    Attributes:
        is_passed_on: whether another worker has failed or is lost, and this one is innocent.
    """

    def __init__(self, message: str, is_passed_on: bool = False) -> None:
        self.is_passed_on = is_passed_on
        super().__init__(message)


class SavingError(SlurmResolverError, RuntimeError):
    """Another task does not finish saving a model."""


class ResumeError(SlurmResolverError, RuntimeError):
    """A training cannot be saved on a signal, or cannot be resumed."""


def shorten_value(text: str) -> str:
    """Returns the two ends of a value of more than 200 characters."""
    return text if len(text) <= 200 else f"{text[:100]} … {text[-100:]}"
