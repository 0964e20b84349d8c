"""Runs a step on healthy nodes, and starts it again after a failure."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from subprocess import Popen
from time import monotonic, time
from typing import NamedTuple

from slurm_resolver.signals import REQUEUE_STATUS
from slurm_resolver.slurm.hostlist import compress_hostlist
from slurm_resolver.slurm.scontrol import (
    UNKNOWN_JOB,
    cancel_steps,
    own_job,
    show_nodes,
    show_steps,
)
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.supervision.batch_host import end_watch, start_watch
from slurm_resolver.supervision.policy import (
    UNHEALTHY,
    NoRestartError,
    same_again,
    stop_if_job_ends,
)
from slurm_resolver.supervision.step import (
    FAILED,
    SignalRelay,
    StepFailure,
    StepOutput,
    run_step,
    say,
)
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import counted

_ANSWER_SECONDS = 60.0  # scontrol itself waits as long for a busy controller
# Why a step is not started again, by the kind of its failure.
_FINAL = {
    "cancelled": "the step was cancelled, by Slurm or by a user",
    "refused": "Slurm refuses srun's options, or variables that srun reads in their place",
    "saved": "exit status {}: the training was ended by a signal, or has saved and asks for a "
    "requeue",
}
# What srun runs, with these options, to check the nodes.
_CHECK = (
    "--overlap",
    "--output=all",
    "--error=all",
    "--kill-on-bad-exit=1",
    "--time=10",
    "bash",
    "-c",
    'exec "$@" >&2',  # `run_step` reads standard error
    "check",
    sys.executable,
    "-m",
    "slurm_resolver",
    "check",
    "--collective",
)


class SupervisorOptions(NamedTuple):
    """The options of `slurm-resolver supervise`; `command` is srun, its options, the program."""

    command: Sequence[str]
    restarts: int = 3
    nodes: int | None = None
    min_nodes: int | None = None
    tasks_per_node: int = 1
    requeue: bool = False
    pause: float = Timeouts.pause
    least_time: float = Timeouts.least_time
    watch: float = 30.0
    check: bool = False


class Supervisor:
    """Runs the step, and starts it again; `step` has the variables of the batch file."""

    # srun's option to share nodes, once a former step still holds some
    _sharing: Sequence[str] = ()
    # where tasks of the last step may not have ended
    _unended: Iterable[str] = ()

    def __init__(self, options: SupervisorOptions, step: SlurmStep) -> None:
        self._options = options
        self._step = step
        self._relay = SignalRelay()
        self._failures: list[StepFailure] = []  # one for each start
        self._nodes: dict[str, str] = {}  # all that the job has had, and why not to use them, or ''
        self._suspects: dict[str, str] = {}  # the reason, by node
        self._holding: set[str] = set()  # nodes on which a former step has not ended
        self._watch: Popen[str] | None = None  # the srun of the step that watches this node

    def run(self) -> int:
        """Returns the exit status: 0, that of the first failure, or REQUEUE_STATUS."""
        if self._step.het_size:  # Slurm ends the components of such a job one by one
            status = run_step(self._options.command, self._relay).status
            if status:
                say(f"exit status {status}; not started again: the job is heterogeneous")
            return status
        failures = self._failures
        try:
            self._run_until_success()
        except NoRestartError as stop:
            status = failures[-1].status if failures else 1
            why = stop.why
            if self._options.requeue and stop.requeue:
                status = REQUEUE_STATUS
                why += f"; exit status {status} asks the batch file to requeue the job"
            say(f"not started{' again' if failures else ''}: {why}")
            if failures:
                say(f"first failure: {failures[-1].text}")
            return status
        finally:
            words = end_watch(self._watch) if self._watch else ""
            if words and not self._relay.received:
                say(f"the step that watches this node has ended: {words}")
        if failures:
            say(f"ended with status 0, after {counted(len(failures), 'restart')}")
        return 0

    def _run_until_success(self) -> None:
        """Runs the step until it ends with status 0, or raises NoRestartError."""
        options = self._options
        while True:
            self._update_nodes()
            if options.check:
                self._check_nodes()
            nodes = self._choose(options.nodes or len(self._nodes))
            restarts = len(self._failures)
            now = f"now on {compress_hostlist(nodes)}{self._without(nodes)}"
            if restarts:
                os.environ[SlurmStep.step_restart.name] = str(restarts)
                say(
                    f"restart {restarts} of {options.restarts}; {now}; "
                    f"first failure: {self._failures[-1].text}"
                )
            elif self._suspects:
                say(now)
            output = self._run_on(nodes, options.command[1:])
            if output.status == 0:
                return
            self._failures.append(output.failure())
            self._check_failure(spare=len(self._nodes) > len(nodes))
            self._relay.wait(options.pause)
            self._suspects.update(output.bad)

    def _check_nodes(self) -> None:
        """Checks all nodes before a start, and the others again if one of them fails in this."""
        while True:
            output = self._run_on(self._choose(len(self._nodes)), _CHECK)
            if output.status and not output.bad:
                say(f"the check of the nodes has failed: {output.failure().text}")
            is_known = output.bad.keys() <= self._suspects.keys()
            self._suspects.update(output.bad)
            self._update_nodes()
            if is_known or FAILED not in output.bad.values():
                return

    @property
    def _healthy(self) -> list[str]:
        return [name for name, why in self._nodes.items() if not why]

    def _choose(self, wanted: int) -> list[str]:
        """Returns the nodes for the next start, or raises NoRestartError if too few are left.

        Suspects are used only if there would be too few nodes without them.
        """
        healthy = self._healthy
        least = self._options.min_nodes or self._options.nodes or len(self._nodes)
        if len(healthy) < least:
            raise NoRestartError(
                f"{counted(len(healthy), 'healthy node')} left{self._without(healthy)}: "
                f"expected {least} or more (see --min-nodes)",
                requeue=True,
            )
        trusted = [name for name in healthy if name not in self._suspects]
        return (trusted if len(trusted) >= least else healthy)[:wanted]

    def _run_on(self, nodes: Sequence[str], words: Sequence[str]) -> StepOutput:
        """Runs a step on these nodes; `words` are options of srun, and a program."""
        options = self._options
        each = options.tasks_per_node
        this_node = self._step.node_name  # none in a shell of salloc
        others = [name for name in self._healthy if name != this_node]
        watches = options.watch and this_node and others
        if watches and (not self._watch or self._watch.poll() is not None):
            # The last node may be a spare one.
            self._watch = start_watch(self._job_ref, others[-1], options.watch, options.requeue)
        output = run_step(
            [  # an option of the user's own comes later, and counts
                options.command[0],
                f"--nodes={len(nodes)}",
                f"--ntasks={len(nodes) * each}",
                f"--ntasks-per-node={each}",
                f"--nodelist={compress_hostlist(nodes)}",
                *self._sharing,
                *words,
            ],
            self._relay,
        )
        self._unended = output.left_on(nodes)
        return output

    def _check_failure(self, spare: bool) -> None:
        """Raises NoRestartError if a restart after the last failure would not help."""
        failure = self._failures[-1]
        if self._relay.received:
            raise NoRestartError(f"received {self._relay.received.name}")
        if failure.kind in _FINAL:
            raise NoRestartError(_FINAL[failure.kind].format(failure.status))
        if same_again(self._failures):
            node = failure.node
            if not spare or node in ("", *self._suspects) or node != self._failures[-2].node:
                raise NoRestartError(
                    "the last two failures were the same, without any progress in between"
                )
            # The node may be the cause: try once more without it.
            self._suspects[node] = "the same failure twice"
        if len(self._failures) > self._options.restarts:
            raise NoRestartError(f"--restarts {self._options.restarts} allows no more")

    def _update_nodes(self) -> None:
        """Asks for the states of the job's nodes; raises NoRestartError if the job ends."""
        until = monotonic() + Timeouts.controller
        while not self._relay.received:
            try:
                self._look()
                return
            except OSError as error:
                if monotonic() > until or UNKNOWN_JOB in str(error):
                    raise NoRestartError(
                        f"Slurm does not know job {self._step.job_label}, or does not answer "
                        f"({error})"
                    ) from None
            self._relay.wait(5.0)
        raise NoRestartError(f"received {self._relay.received.name}", requeue=True)

    def _look(self) -> None:
        """Asks for the states once; raises OSError if Slurm cannot say them now.

        It ends what the last srun has left behind, or notes which nodes still hold it.
        """
        relay = self._relay
        until = monotonic() + Timeouts.held_step
        while True:
            self._job_ref, slurm_job = own_job(self._step, _ANSWER_SECONDS)
            if not relay.srun or relay.received:
                break
            srun = f"{platform.node().partition('.')[0]}:{relay.srun.pid}"
            held = [step for step in show_steps(slurm_job) if step.get("SrunHost:Pid") == srun]
            if not held:
                break
            with suppress(OSError):  # they may have ended by now
                cancel_steps(held)
            if monotonic() > until:
                self._holding.update(self._unended)
                self._sharing = ("--overlap",)
                break
            relay.wait(1.0)
        if self._failures:  # the batch file decides about the first start
            stop_if_job_ends(
                slurm_job,
                self._step.restart_count or 0,
                self._options.least_time,
                time(),
            )
        states = show_nodes("State", slurm_job["NodeList"], _ANSWER_SECONDS)
        # of a controller that has just started
        if any(state.startswith("UNKNOWN") for state in states.values()):
            raise OSError("nodes have not registered with the controller yet")
        host = self._step.node_name
        if host in self._nodes.keys() - states.keys():
            raise NoRestartError(f"the job has lost {host}, this node", requeue=True)
        self._nodes = dict.fromkeys(self._nodes, "no longer the job's")
        for name, state in states.items():
            why = state if UNHEALTHY.search(state) else ""
            self._nodes[name] = "holds the former step" if name in self._holding else why

    def _without(self, used: Sequence[str]) -> str:
        """Returns the nodes that cannot be used, each with the reason, for a message; or ''."""
        reasons = {**self._suspects, **{name: why for name, why in self._nodes.items() if why}}
        out = [f"{name} ({why})" for name, why in reasons.items() if name not in used]
        return f", without {', '.join(out)}" if out else ""
