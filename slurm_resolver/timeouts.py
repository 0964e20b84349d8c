"""How long things wait that users notice; docs/waits.md says what each wait is."""

from __future__ import annotations


class Timeouts:
    """Seconds, by default: some have an argument, an option or a variable of their own."""

    # at the start
    check = 60.0
    start = 600.0
    first_notice = 30.0  # of what is missing
    next_notices = 60.0
    # in a training
    closed = 2.0  # for a process that closed its connection to return
    grace = 30.0
    silence_factor = 4
    report = 5.0
    stall = 300.0
    stall_repeat = 300.0
    patience_factor = 12
    saving = 300.0  # until the others give up if the writing worker adds nothing
    # at the end
    still_running = 30.0
    save = 900.0
    local_kill = 5.0  # as Slurm's KillWait
    controller = 600.0  # may be down as long, such as during a restart
    # After an outage, slurmstepd tells the controller of the end only after 60 s.
    held_step = 120.0
    pause = 2.0
    least_time = 60.0
