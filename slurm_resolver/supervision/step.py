"""One start of a step: srun as a child process, and what its output says about its end.

The lines that srun prints decide what kind of failure it is. The output of the tasks also decides
which task failed first: srun may first report one that has ended because of another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from signal import SIGINT, SIGKILL, Signals, strsignal
from subprocess import PIPE, Popen
from threading import Event, Thread
from time import monotonic, sleep, strftime
from typing import NamedTuple

from slurm_resolver.diagnostics.first_failure import SAVED, FailureReader
from slurm_resolver.diagnostics.log_lines import find_bad_nodes, find_resumed
from slurm_resolver.diagnostics.task_output import Failure, kind_of
from slurm_resolver.log import print_line
from slurm_resolver.signals import PASSED_ON, handle, shell_status
from slurm_resolver.slurm.scontrol import show_config

FAILED = "failed"  # a node, in messages
_PIECE = 64 * 1024
# An error of srun; those of options begin with the program as it was called.
_SRUN_ERROR = re.compile(r"\S*srun: (?:error: |fatal: |(?:unrecognized |invalid )?option\b)")
# A signal alone, such as before a preemption, does not make srun end the step.
_SRUN_ENDS = re.compile(r"srun: .*?(?:Terminating |Job step aborted)")
# The exit status of a task that a signal has ended, by what srun prints.
_EXITED = re.compile(r"Exited with exit code (\d+)")
_BY_SIGNAL = {strsignal(number): 128 + number for number in Signals}
_BY_SIGNAL["Out Of Memory"] = 128 + SIGKILL


# prints a line for the user
say = partial(print_line, program="slurm-resolver supervise")


class SignalRelay:
    """Records the signals to this process, passes them on to srun, and ends waits.

    srun gives SIGUSR1 and SIGUSR2 to all tasks, and kills them on SIGTERM.

    Attributes:
        received: the first signal that has come.
        srun: the process that gets them.
    """

    received: Signals | None = None
    srun: Popen[bytes] | None = None

    def __init__(self) -> None:
        handle(PASSED_ON, self._pass_on)

    def _pass_on(self, number: int, frame: object) -> None:
        self.received = self.received or Signals(number)
        # A terminal sends Ctrl-C to srun as well, and a second one makes it abort the step.
        if self.srun and (number != SIGINT or not os.isatty(0)):
            self.srun.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Waits for this time, or until a signal has come."""
        until = monotonic() + seconds
        while not self.received and monotonic() < until:
            sleep(0.2)


class StepFailure(NamedTuple):
    """Why a step has ended.

    Attributes:
        kind: "task"; "saved" (a task ended after a signal, or asks for a requeue); "node" (it
            failed, or could not start its tasks); "cancelled" (somebody ended the step); "refused"
            (what srun is asked for cannot be had); "srun" (it could not start the step).
        status: the exit status of the task, or 128 and the number of its signal; else srun's own.
        text: who failed first, when and why, for messages.
        error: what is the same if the step fails again in the same way.
        seconds: how long the step has run.
        node: the node; '' if it is unknown.
        progress: the checkpoint from which the training said that it resumes; or ''.
    """

    kind: str
    status: int
    text: str
    error: str
    seconds: float
    node: str
    progress: str


class StepOutput(FailureReader):
    """Reads what srun and its tasks write to standard error, while it is passed on.

    Attributes:
        status: srun's exit status.
        srun_ends: whether srun says that it ends the step.
        bad: nodes that fail, or are missing or slow in `check --collective`, each with the reason.
    """

    status = 0
    srun_ends = False
    _saved = False  # although a task exits as a failed one: the job may not be requeued any more
    _rest = b""
    _srun_error = ""  # the last one
    _progress = ""
    _lines = 0

    def __init__(self) -> None:
        super().__init__(file="")
        self.bad: dict[str, str] = {}
        self._begun = monotonic()

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-_PIECE:]
        for line in lines:
            text = line.decode(errors="replace")
            self._lines += 1
            self.read(text, self._lines)
            bad = find_bad_nodes(text)
            if self.node and self.node.node:
                bad[self.node.node] = ""
            for node, why in bad.items():
                self.bad.setdefault(node, why or FAILED)
            self._progress = find_resumed(text) or self._progress
            self.srun_ends |= bool(_SRUN_ENDS.search(text))
            self._saved |= "has reached max_restarts=" in text
            if _SRUN_ERROR.match(text):
                self._srun_error = text.rstrip()

    @property
    def leaves_tasks(self) -> bool:
        """Whether a task or a node has failed, and srun may leave the other tasks running."""
        if self.node or self.all_end or not self.reported:
            return bool(self.node)
        return not SAVED.match(self.reported.line)

    def left_on(self, nodes: Sequence[str]) -> set[str]:
        """Returns on which of these nodes, all of the step, tasks may not have ended."""
        left = {self.node.node} if self.node else set(nodes if self.status else ())
        return left - self.ended_on

    def failure(self) -> StepFailure:
        """Returns why the step has ended, if srun's status is not 0."""
        self.feed(b"\n")
        status = self.status
        line = ""  # the error in the output
        # Tasks often fail because of a node of which Slurm learns later: it is the cause then.
        if self.node:
            end = self.node
            status = 1
            kind = "node" if end.node else "refused"
        elif self.reported and not self.reported.follows:
            end = self.reported
            kind = "saved"
            if not (self._saved or SAVED.match(end.line)):
                kind = "task"
                first = self.first() or end  # the task that failed first
                last = self.ends.get(first.rank, end)
                if first.is_end:
                    last = first
                else:
                    line = first.line
                if last.follows and not _EXITED.match(last.line):  # srun has ended it
                    last = end
                # The log may not say which task it was.
                end = (first if first.rank else end)._replace(line=last.line)
            exited = _EXITED.match(end.line)
            signalled = end.line.removesuffix(" (core dumped)")
            status = int(exited[1]) if exited else _BY_SIGNAL.get(signalled, 1)
        elif self.all_end:
            end = Failure(0, "cancelled", other="the step")
            kind = "cancelled"
        else:
            end = Failure(0, f"exit status {status}", other="srun")
            line = self._srun_error
            kind = "refused" if kind_of(line) == "request" else "srun"
        why = f"{end.line}: {line.rstrip(' :')[:300]}" if line else end.line
        # Process ids, times and addresses in errors differ in each start.
        same = re.sub("0x[0-9a-f]+|[0-9]{4,}", "0", why)
        # All ranks may have one error, and any may be the first. Without an error in the output,
        # only the same task has failed in the same way.
        return StepFailure(
            kind=kind,
            status=status,
            text=f"{end.task} at {strftime('%Y-%m-%dT%H:%M:%S')}, {why}",
            error=same if line else f"{end.task}: {why}",
            seconds=monotonic() - self._begun,
            node=end.node,
            progress=self._progress,
        )


def run_step(command: Sequence[str], relay: SignalRelay) -> StepOutput:
    """Runs srun to its end, and returns its output.

    If a task or a node has failed, and srun does not end the other tasks, this does. srun may wait
    for a node that is silent without a limit (26.05): then srun is killed, and leaves its step.
    """
    process = Popen(command, stderr=PIPE, bufsize=0)
    relay.srun = process
    if relay.received:  # while srun was being started
        process.send_signal(relay.received)
    output = StepOutput()
    ended = Event()

    def end_tasks() -> None:
        if ended.wait(2.0):  # srun has ended the other tasks by itself
            return
        if output.leaves_tasks:
            process.terminate()
        seconds = 30.0  # Slurm's default KillWait
        with suppress(OSError):
            seconds = float(show_config()["KillWait"].split()[0])
        if not ended.wait(seconds + 10.0):  # for srun to report that it has killed the tasks
            process.kill()

    ending = Thread(target=end_tasks, daemon=True)
    with process:
        assert process.stderr
        for data in iter(partial(process.stderr.read, _PIECE), b""):
            # a full disk must not end a training
            with suppress(OSError), open(2, "wb", closefd=False) as standard_error:
                standard_error.write(data)
            output.feed(data)
            if (output.leaves_tasks or output.srun_ends) and ending.ident is None:
                ending.start()
    ended.set()
    output.status = shell_status(process.returncode)
    return output
