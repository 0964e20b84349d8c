"""Acts after a signal as the first rank of a training does after its save.

The first argument contains arguments of `requeue_job` as JSON: how to requeue, and the limit of
restarts. From the job's second start on, the task ends by itself with status 0. The second argument
is optional and names a file: once it exists, all tasks but the first fail.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from slurm_resolver.preemption.exit_plan import requeue_job
from slurm_resolver.preemption.signal_watch import SignalWatch
from slurm_resolver.slurm.step_variables import SlurmStep


def main() -> None:
    requeue, max_restarts = json.loads(sys.argv[1])
    step = SlurmStep.read()
    watch = SignalWatch(("SIGUSR1", "SIGTERM"))
    watch.arm()
    print("start", step.restart_count or 0, flush=True)
    if step.restart_count:
        print("trained")
        return
    while watch.received is None:
        time.sleep(0.05)
        if sys.argv[2:] and step.rank and Path(sys.argv[2]).exists():
            sys.exit(1)
    watch.leave_on_sigterm()
    announced = watch.received != "SIGTERM"
    plan = requeue_job(step, requeue, max_restarts, announced=announced)
    print(f"after {watch.received}: {plan.message}", flush=True)
    until = time.monotonic() + plan.wait
    while not watch.ended and time.monotonic() < until:
        time.sleep(0.05)
    sys.exit(plan.status)


if __name__ == "__main__":
    main()
