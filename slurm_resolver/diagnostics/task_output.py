"""Finds the error of one task in its output.

A Python error ends a traceback. A library that ends the process writes a line of its own: Abseil
and TensorFlow, the C++ runtime, the loader, a container. Other programs write their name and the
error before they exit. Such a line may also be harmless: it counts only if the task has failed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_resolver.coordination.usage import LINE
from slurm_resolver.diagnostics.message_search import search

_MOST_LINES_AFTER = 200  # a task may write after its last error; TensorFlow's own may be long
_MOST_LINES_OF_END = 20  # in which a program reports its errors before it exits
_LAST_LINES = 2  # of a log
# TensorFlow's errors of calls to another task.
_CALL_ERRORS = re.compile(r"errors_impl\.(?:Unavailable|Aborted|Cancelled|DeadlineExceeded)Error:")
_TRACEBACK = "Traceback (most recent call last)"
# Python says this of an error that ends nothing, above its traceback.
_IGNORED = re.compile("Exception ignored |--- Logging error ---")
# The last line of a traceback: the class of the error, which has a dot or a capital letter. srun
# --label may cut the indentation of the lines of code above it, and of those that underline them.
# The lines of an exception group begin with a bar.
_ERROR = re.compile(r"(?: +\| )?((?=[\w.<>]*[A-Z.])[A-Za-z_][\w.<>]*(?::? *$|: .*))", re.DOTALL)
# An error whose reason is in the next line; in C++, the class of what is thrown comes before it.
_WITHOUT_REASON = re.compile(r".*:$|(?:terminate called|libc\+\+abi: ).*'$")
# Below "Graph execution error:", TensorFlow gives places in the program, and then the reason.
_PLACE = re.compile(
    r"\s*$"
    r"|Detected at node"
    r"|Defined at"
    r"|Node: "
    r"|<stack traces"
    r"|\d+ root error"
    r'|\s*File "'
    r"|\s+(?!\s|\(0\) |what\(\))"
)
# A graph, of any length.
_DUMP = re.compile(
    r"\s*(?:"
    r"\}"
    r"|[a-z_]+ \{"
    r"|[a-z_]+: \S"
    r"|$"
    r")"
)
# Python gives a syntax error of the program itself no traceback.
_FATAL = re.compile(
    r"F(?:\d{4} [\d:.]+ +\d+)? \S+:\d+\] "
    r"|terminate called "
    r"|libc\+\+abi: "
    r"|Fatal Python error: "
    r"|(?:Syntax|Indentation|Tab)Error: "
    r"|FATAL(?: ERROR)?: "
    r"|.{0,300}\b(?:error while loading shared libraries|symbol lookup error|relocation error): "
    r"|.{0,300}: Assertion `.* failed"
    r"|\[\S+ : \d+\] RAW: "
)
# A line of Keras, which trains. What follows a bar may be on its line.
_STEP = re.compile(
    rf"(?:Epoch \d+/\d+|\s*\d+/\d+ (?:━|\[[=>.])|{LINE.pattern}).*?"
    r"(?=Traceback \(most recent|Fatal Python error: |terminate called |F\d{4} [\d:.]+ |$)"
)
# Words of an error near the beginning of a line, but no number of errors. What pyxis writes around
# the reason, and TensorFlow's notes, are none.
_CLUE = re.compile(
    r"(?!.*(?:\[INFO\]|\[WARN(?:ING)?\]|pyxis: (?:child|container start|failed to|printing|could)))"
    r"(?![IWE](?:\d{4} | \S+:\d+\]))"
    r"(?:"
    r"(?:\S{1,100}\s+){0,5}?\S{0,60}?(?:"
    r"(?:ERROR|FATAL|CRITICAL|panic|panicked)(?![A-Za-z_])"
    r"|(?:Error|Exception)(?= ?[:#]| in | response)"
    r"|\b(?:error|fatal)(?=\]? *:)"
    r")(?!\W{0,3}[\d.]+(?:e[+-]?\d+)?(?:[\s,;)%]|$))"
    r"|(?:\S{1,100} )?(?:severe |Abort|Fatal error)\(?"
    r"|\S*(?:slurm_script|sh) ?: [^\W\d]+ \d+ ?: "
    r"|\S*python[\d.]*: "
    r"|(?:\S{1,100} )?[^\s:]{1,200}: .{0,200}(?:[Cc]annot|[Cc]an't|[Cc]ould not|[Uu]nable to"
    r"|[Ff]ailed|No such file|denied|not found|closed by|undefined symbol)"
    r"|curl: \(|wget: "
    r"|[a-z_]+\(\): |double free |corrupted |\*\*\* (?:stack|buffer|glibc)"
    r"|\[\S+:\d+:\d+:\d+\] Caught signal"
    r")"
)


class Failure(NamedTuple):
    """How a task failed.

    Attributes:
        line_number: the number of `line`, from 1.
        line: the error.
        follows: whether another task's failure caused it, as far as is known.
        is_end: whether `line` only says how the task ended, in the words of another.
        rank: the task's rank; '' if the log does not say, or no task has failed.
        node: the node; '' unless srun or this package names it.
        other: what has failed, if it is no task.
    """

    line_number: int
    line: str
    follows: bool = False
    is_end: bool = False
    rank: str = ""
    node: str = ""
    other: str = ""

    @property
    def task(self) -> str:
        """The task's rank, with its node if known, or what else has failed; '' if unknown."""
        place = f" on {self.node}" if self.node else ""
        return f"rank {self.rank}{place}" if self.rank else self.other


class TaskOutput:
    """Finds the last error in the output of a task.

    Attributes:
        trained: the number of the last line that shows steps of training, or its end.
    """

    trained = 0
    _awaited = ""  # "error" in a traceback; "ignored" before an error that ends nothing
    _lines = 0  # without those of dumps
    _error: Failure | None = None
    _error_at = 0  # the value of `_lines`
    _clue: Failure | None = None
    _clue_at = 0

    def read(self, text: str, number: int) -> None:
        """Reads the next line, without its label."""
        self._lines += not _DUMP.match(text)
        step = _STEP.match(text)
        if step:
            self.trained = number
            self._clue = None
            text = text[step.end() :]
        if _IGNORED.match(text):
            self._awaited = "ignored"
        elif _TRACEBACK in text:
            self._awaited = self._awaited or "error"
        elif self._awaited:  # an ignored error may have no traceback
            error = _ERROR.match(text)
            if error and self._awaited == "error":
                self._take_error(error[1], number)
            if error:
                self._awaited = ""
        elif _FATAL.match(text):
            self._take_error(text, number)
        elif self._error and _WITHOUT_REASON.match(self._error.line) and not _PLACE.match(text):
            number, line, follows, *_ = self._error
            self._take_error(f"{line} {text.strip()}", number, follows)
        elif _CLUE.match(text):
            self._take_clue(text, number)

    def _take_error(self, text: str, number: int, follows: bool = False) -> None:
        """Keeps an error, or its reason, unless a library has ended the process before."""
        last = self.error(has_failed=True)
        if last and _FATAL.match(last.line) and not text.startswith(last.line):
            return
        self._error = Failure(number, text, follows or kind_of(text) == "effect")
        self._error_at = self._lines

    def _take_clue(self, text: str, number: int) -> None:
        """Keeps the first of the lines in which a program says why it exits."""
        is_last = self._clue and self._lines - self._clue_at <= _MOST_LINES_OF_END
        if not is_last and kind_of(text) not in ("effect", "end", "note", "hidden"):
            self._clue = Failure(number, text)
            self._clue_at = self._lines

    def error(self, has_failed: bool) -> Failure | None:
        """Returns the error at the end of the output.

        Args:
            has_failed: whether the launcher says so. Otherwise, an error after which the task
                trains is none.
        """
        is_recent = self._lines - self._error_at <= _MOST_LINES_AFTER
        counts = has_failed or (self._error and self._error.line_number >= self.trained)
        return self._error if is_recent and counts else None

    def clue(self, has_failed: bool) -> Failure | None:
        """Returns the line that says why a program exited, if it `has_failed` or ends there."""
        most = _MOST_LINES_AFTER if has_failed else _LAST_LINES
        return self._clue if self._lines - self._clue_at <= most else None


def kind_of(line: str) -> str:
    """Returns the kind of the known message in a line, as far as that is known; else ''."""
    known, _ = search(line)
    if known:
        return known.kind
    return "effect" if _CALL_ERRORS.search(line) else ""
