"""Runs a step on healthy nodes, and starts it again after a failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from time import monotonic, time
from typing import NamedTuple

from slurm_resolver.signals import REQUEUE_STATUS
from slurm_resolver.slurm.hostlist import compress_hostlist
from slurm_resolver.slurm.scontrol import UNKNOWN_JOB, Fields, own_job, show_nodes
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.supervision.batch_host import Watch
from slurm_resolver.supervision.policy import (
    HOLDS_STEP,
    LOST,
    NoRestartError,
    choose,
    healthy_nodes,
    same_again,
    stop_if_job_ends,
)
from slurm_resolver.supervision.step import (
    FAILED,
    SignalRelay,
    StepFailure,
    StepOutput,
    end_held_steps,
    run_step,
    say,
)
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import counted

_ANSWER_SECONDS = 60.0  # scontrol itself waits as long for a busy controller
_POLL_SECONDS = 1.0
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
# Why a step is not started again, by the kind of its failure.
_FINAL = {
    "cancelled": "the step was cancelled, by Slurm or by a user",
    "refused": "Slurm refuses srun's options, or variables that srun reads in their place",
    "saved": "exit status {}: the training was ended by a signal, or has saved and asks for a "
    "requeue",
}


class SupervisorOptions(NamedTuple):
    """The options of `slurm-resolver supervise`; `command` is srun, its options, the program."""

    command: Sequence[str]
    restarts: int
    nodes: int | None
    min_nodes: int | None
    tasks_per_node: int
    requeue: bool
    pause: float
    least_time: float
    watch: float
    check: bool


class Supervisor:
    """Runs the step, and starts it again; `step` has the variables of the batch file."""

    # srun's option to share nodes, once a former step still holds some
    _sharing: Sequence[str] = ()

    def __init__(self, options: SupervisorOptions, step: SlurmStep) -> None:
        self._options = options
        self._step = step
        self._relay = SignalRelay()
        self._failures: list[StepFailure] = []  # one for each start
        self._states: Fields = {}  # of all nodes that the job has had
        self._suspects: dict[str, str] = {}  # the reason, by node
        self._holding: set[str] = set()  # nodes on which a former step has not ended
        self._watch = Watch(options.watch, options.requeue)

    def run(self) -> int:
        """Returns the exit status: 0, that of the first failure, or REQUEUE_STATUS."""
        if self._step.het_size:  # Slurm ends the components of such a job one by one
            status = run_step(self._options.command, self._relay).status
            if status:
                say(f"exit status {status}; not started again: the job is heterogeneous")
            return status
        try:
            self._update_states()
            self._run_until_success()
        except NoRestartError as stop:
            return self._give_up(stop)
        finally:
            words = self._watch.stop()
            if words and not self._relay.received:
                say(f"the step that watches this node has ended: {words}")
        if self._failures:
            say(f"ended with status 0, after {counted(len(self._failures), 'restart')}")
        return 0

    def _give_up(self, stop: NoRestartError) -> int:
        """Says why the step is not started, and returns the exit status."""
        failures = self._failures
        status = failures[-1].status if failures else 1
        why = stop.why
        if self._options.requeue and stop.requeue:
            status = REQUEUE_STATUS
            why += f"; exit status {status} asks the batch file to requeue the job"
        say(f"not started{' again' if failures else ''}: {why}")
        if failures:
            say(f"first failure: {failures[-1].text}")
        return status

    def _run_until_success(self) -> None:
        """Runs the step until it ends with status 0, or raises NoRestartError.

        With --check, the nodes are checked before each start, and again after one that fails.
        """
        options = self._options
        wanted = options.nodes or len(self._states)
        least = options.min_nodes or wanted
        to_check = options.check
        while True:
            chosen = self._choose(len(self._states) if to_check else wanted, least)
            if to_check:
                output = self._run_on(chosen, [options.command[0], *_CHECK])
                if output.status and not output.bad:
                    say(f"the check of the nodes has failed: {output.failure().text}")
                is_known = output.bad.keys() <= self._suspects.keys()
                to_check = FAILED in output.bad.values() and not is_known
            else:
                self._announce(chosen)
                output = self._run_on(chosen, options.command)
                if output.status == 0:
                    return
                self._failures.append(output.failure())
                self._check_failure(spare=len(self._states) > len(chosen))
                self._relay.wait(options.pause)
                to_check = options.check
            self._suspects.update(output.bad)
            self._update_states(output.left_on(chosen))

    def _choose(self, wanted: int, least: int) -> list[str]:
        """Returns the nodes for the next start, or raises NoRestartError if too few are left."""
        healthy = self._healthy
        chosen = choose(
            healthy,
            self._suspects,
            wanted,
            least,
        )
        if not chosen:
            raise NoRestartError(
                f"{counted(len(healthy), 'healthy node')} left{self._without(healthy)}: "
                f"expected {least} or more (see --min-nodes)",
                requeue=True,
            )
        return chosen

    def _announce(self, nodes: Sequence[str]) -> None:
        """Tells the user and the tasks that the next step is a restart, if it is one."""
        restarts = len(self._failures)
        now = f"now on {compress_hostlist(nodes)}{self._without(nodes)}"
        if restarts:
            os.environ[SlurmStep.step_restart.name] = str(restarts)
            say(
                f"restart {restarts} of {self._options.restarts}; {now}; "
                f"first failure: {self._failures[-1].text}"
            )
        elif self._suspects:
            say(now)

    def _run_on(self, nodes: Sequence[str], command: Sequence[str]) -> StepOutput:
        """Runs a step on these nodes; `command` is srun, its options, and a program."""
        each = self._options.tasks_per_node
        self._watch.start(
            self._job_ref, [name for name in self._healthy if name != self._step.node_name]
        )
        return run_step(
            [  # an option of the user's own comes later, and counts
                command[0],
                f"--nodes={len(nodes)}",
                f"--ntasks={len(nodes) * each}",
                f"--ntasks-per-node={each}",
                f"--nodelist={compress_hostlist(nodes)}",
                *self._sharing,
                *command[1:],
            ],
            self._relay,
        )

    def _check_failure(self, spare: bool) -> None:
        """Raises NoRestartError if a restart after the last failure would not help."""
        failure = self._failures[-1]
        if self._relay.received:
            raise NoRestartError(f"received {self._relay.received.name}")
        why = _FINAL.get(failure.kind)
        if why:
            raise NoRestartError(why.format(failure.status))
        if same_again(self._failures):
            node = failure.node
            is_other = node != self._failures[-2].node
            if not spare or not node or node in self._suspects or is_other:
                raise NoRestartError(
                    "the last two failures were the same, without any progress in between"
                )
            # The node may be the cause: try once more without it.
            self._suspects[node] = "the same failure twice"
        if len(self._failures) > self._options.restarts:
            raise NoRestartError(f"--restarts {self._options.restarts} allows no more")

    def _update_states(self, unended: Collection[str] = ()) -> None:
        """Asks for the states of the job's nodes; raises NoRestartError if the job ends.

        On the `unended` nodes, tasks of the last step may not have ended.
        """
        until = monotonic() + Timeouts.controller
        while not self._relay.received:
            try:
                self._end_former_step(unended)
                self._ask_for_states()
                return
            except OSError as error:
                if monotonic() > until or UNKNOWN_JOB in str(error):
                    raise NoRestartError(
                        f"Slurm does not know job {self._step.job_label}, or does not answer "
                        f"({error})"
                    ) from None
            self._relay.wait(5.0)
        raise NoRestartError(f"received {self._relay.received.name}", requeue=True)

    def _ask_for_states(self) -> None:
        """Asks once; raises OSError if Slurm cannot say the states now."""
        self._job_ref, slurm_job = own_job(self._step, _ANSWER_SECONDS)
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
        self._states = {
            **dict.fromkeys(self._states, LOST),
            **states,
            **dict.fromkeys(self._holding & states.keys(), HOLDS_STEP),
        }
        self._healthy = healthy_nodes(self._states)
        host = self._step.node_name or ""
        if self._states.get(host) == LOST:
            raise NoRestartError(f"the job has lost {host}, this node", requeue=True)

    def _end_former_step(self, unended: Collection[str]) -> None:
        """Ends what the last srun has left behind, or notes which nodes still hold it."""
        relay = self._relay
        until = monotonic() + Timeouts.held_step
        while relay.srun and not relay.received and end_held_steps(self._step, relay.srun.pid):
            if monotonic() > until:
                self._holding.update(unended)
                self._sharing = ("--overlap",)
                return
            relay.wait(_POLL_SECONDS)

    def _without(self, used: Sequence[str]) -> str:
        """Returns the nodes that cannot be used, each with the reason, for a message; or ''."""
        reasons = {**self._states, **{name: self._suspects.get(name, "") for name in self._healthy}}
        out = [f"{name} ({why})" for name, why in reasons.items() if why and name not in used]
        return f", without {', '.join(out)}" if out else ""
