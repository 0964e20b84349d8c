"""The loop: a step on healthy nodes, and one more after it has failed, where that is worth it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.preemption.preempted import is_preempted
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, job_id_for_scontrol
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.supervision.batch_host import Watch
from slurm_resolver.supervision.nodes import Nodes, choose, nodes_of, srun_options
from slurm_resolver.supervision.passed_on import RankLogs, say
from slurm_resolver.supervision.policy import (
    Attempt,
    Stop,
    give_up_reason,
    is_error,
    job_is_ending,
    same_again,
)
from slurm_resolver.supervision.step import Signals, run_step
from slurm_resolver.wording import counted

_ANSWER_SECONDS = 60.0  # scontrol itself waits as long for a busy controller
_CONTROLLER_SECONDS = 600.0  # how long the controller may be down, as while it is restarted


class SupervisorOptions(NamedTuple):
    """What the user asks for; times are in seconds.

    Attributes:
        command: srun, its options, and the program.
        nodes: the number of the step's nodes; None for all of the job's at the first start.
        min_nodes: with how many it may continue; None for `nodes`.
        requeue: whether the batch file requeues the job when this ends with REQUEUE_STATUS.
        pause: from the end of a step to the next start.
        least_time: how long before the job's time limit a start is still worth it.
        watch: how often another node checks that this one lives; 0 for never.
        log_dir: the folder for a log of each task; None for none.
    """

    command: Sequence[str]
    restarts: int = 3
    nodes: Optional[int] = None
    min_nodes: Optional[int] = None
    tasks_per_node: int = 1
    requeue: bool = False
    pause: float = 2.0
    least_time: float = 60.0
    watch: float = 30.0
    log_dir: Optional[str] = None


class Supervisor:
    """Runs the step, again and again where that is worth it."""

    def __init__(self, options: SupervisorOptions, step: SlurmStep, signals: Signals) -> None:
        """Takes the variables of the batch file, whose `job_id` is set.

        Raises:
            OSError: where `log_dir` cannot be made.
        """
        self._options = options
        self._step = step
        self._logs = None if options.log_dir is None else RankLogs(Path(options.log_dir))
        self._job_id = job_id_for_scontrol(step) or ""
        self._signals = signals
        self._attempts: List[Attempt] = []
        self._suspects: Dict[str, str] = {}  # by node why it is one
        self._seen: Tuple[str, ...] = ()  # the nodes of the job when this began
        # of an array's task too the id of the job itself
        self._watch = Watch(step.job_id or "", step.node_name, options.requeue, options.watch)

    def run(self) -> int:
        """Returns the exit status: 0, that of the first failure, or REQUEUE_STATUS."""
        if self._step.het_size:
            return self._run_once()
        try:
            return self._run()
        finally:
            self._watch.stop()

    def _run_once(self) -> int:
        """Runs a step of a heterogeneous job, whose components Slurm ends one by one."""
        status = run_step(self._options.command, self._signals, is_error, self._logs).status
        if status:
            say([f"exit status {status}; not started again: the job is heterogeneous"])
        return status

    def _run(self) -> int:
        nodes, stop = self._look()
        self._seen = nodes.names
        wanted = self._options.nodes or len(nodes.names)
        least = self._options.min_nodes or wanted or 1
        chosen: Tuple[str, ...] = ()
        while True:
            before, chosen = chosen, choose(nodes.healthy(), self._suspects, wanted, least)
            if stop is not None or not chosen:
                return self._end(stop or self._too_few(nodes, least))
            if self._attempts:
                os.environ[SlurmStep.step_restart.name] = str(len(self._attempts))
                say([self._restart_line(nodes, before, chosen)])
            self._watch.start(chosen, nodes.healthy())
            begun = time.monotonic()
            # first, so that an option of the user's own counts
            srun, *words = self._options.command
            command = [srun, *srun_options(chosen, self._options.tasks_per_node), *words]
            ended = run_step(command, self._signals, is_error, self._logs)
            if ended.status == 0:
                if self._attempts:
                    say([f"ended with status 0, after {counted(len(self._attempts), 'restart')}"])
                return 0
            failure = ended.output.failure(ended.status)
            self._attempts.append(Attempt(failure, time.monotonic() - begun, chosen))
            stop = self._give_up_reason()
            if stop is not None:
                return self._end(stop)
            self._signals.wait(self._options.pause)
            nodes, stop = self._look()

    def _give_up_reason(self) -> Optional[Stop]:
        """Returns why no step is started after the last failure; None where a restart may help."""
        failure, _, nodes = self._attempts[-1]
        if self._signals.received is not None:
            return Stop(f"{self._signals.name} has come")
        stop = give_up_reason(failure)
        if stop is not None:
            return stop
        same = same_again(self._attempts)
        if len(self._attempts) > self._options.restarts:
            # the signal may have announced the job's end to tasks that do not save
            ending = self._look()[1] if self._options.requeue and failure.signal else None
            if ending is not None and ending.requeue:
                return ending
            again = ", and it was the same each time" if same else ""
            return Stop(f"--restarts {self._options.restarts} is used up{again}")
        if failure.kind == "node" and failure.node is not None:
            self._suspects[failure.node] = "failed"
        elif same:
            node, before = failure.node, self._attempts[-2].failure.node
            spare = len(self._seen) > len(nodes)
            if node is None or node in self._suspects or node != before or not spare:
                return Stop("it was the same each time, without any progress in between")
            # it may be the node: once more without it
            self._suspects[node] = "the same failure twice"
        return None

    def _look(self) -> Tuple[Nodes, Optional[Stop]]:
        """Returns the job's nodes, and why the job ends, if it does.

        A controller that is restarted answers nothing for a while.
        """
        until = time.monotonic() + _CONTROLLER_SECONDS
        while self._signals.received is None:
            try:
                job = scontrol.show_job(self._job_id, _ANSWER_SECONDS)
                restarts, least_time = self._step.restart_count or 0, self._options.least_time
                stop = job_is_ending(job, restarts, least_time, time.time())
                # whether the first start is worth it is the batch file's decision
                if stop is not None and (self._attempts or "JobState" not in job):
                    return Nodes(), stop
                return nodes_of(job, _ANSWER_SECONDS), None
            except OSError as error:
                if "Invalid job id" in str(error):
                    return Nodes(), Stop(f"Slurm does not know job {self._job_id}")
                if time.monotonic() > until:
                    return Nodes(), Stop(f"Slurm does not answer ({error})")
            self._signals.wait(5.0)
        return Nodes(), Stop(f"{self._signals.name} has come")

    def _restart_line(self, nodes: Nodes, before: Sequence[str], chosen: Sequence[str]) -> str:
        out = [f"{name} ({self._why_out(name, nodes)})" for name in before if name not in chosen]
        came = [name for name in chosen if name not in before]
        parts = [f"now on {compress_hostlist(chosen)}"]
        parts += [f"left out: {', '.join(out)}"] if out else []
        parts += [f"came in: {', '.join(came)}"] if came else []
        number = f"restart {len(self._attempts)} of {self._options.restarts}"
        failure = self._attempts[-1].failure.describe()
        return f"{number}; {'; '.join(parts)}; first failure: {failure}"

    def _why_out(self, name: str, nodes: Nodes) -> str:
        if name not in nodes.names:
            return "no longer the job's"
        if name not in nodes.healthy():
            return nodes.states.get(name, "unknown to Slurm")
        return self._suspects.get(name, "not needed")

    def _too_few(self, nodes: Nodes, least: int) -> Stop:
        healthy = nodes.healthy()
        out = [
            f"{name} ({self._why_out(name, nodes)})" for name in self._seen if name not in healthy
        ]
        without = f", without {', '.join(out)}" if out else ""
        hint = "" if self._options.min_nodes else "; --min-nodes lets it continue with fewer"
        left = counted(len(healthy), "healthy node")
        return Stop(f"{left} left{without}: expected {least} or more{hint}", requeue=True)

    def _end(self, stop: Stop) -> int:
        """Says why nothing is started again, and what failed first; returns the exit status."""
        status, why = 1, stop.why
        lines = []
        if self._attempts:
            last, first = self._attempts[-1].failure, self._attempts[0].failure
            status = last.status
            lines.append(f"first failure: {last.describe()}")
            if not first.is_same(last):
                lines.append(f"of all starts the first failure: {first.describe()}")
        if self._options.requeue and stop.requeue:
            status = REQUEUE_STATUS
            why += f"; exit status {status} asks the batch file to requeue the job"
        elif self._signals.received is None:
            self._disable_requeue()
        restarts = len(self._attempts) - 1
        again = "" if restarts < 0 else " again"
        again += f" after {counted(restarts, 'restart')}" if restarts > 0 else ""
        say([f"not started{again}: {why}", *lines])
        return status

    def _disable_requeue(self) -> None:
        """Keeps Slurm from holding a job that fails for good, where it would."""
        with contextlib.suppress(OSError):
            job = scontrol.show_job(self._job_id, _ANSWER_SECONDS)
            if scontrol.requeues_failures(job) and not is_preempted(job):
                scontrol.allow_requeue(self._job_id, False, _ANSWER_SECONDS)
