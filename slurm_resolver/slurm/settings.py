"""The variables of this package: what the user sets, and what it sets for its own processes."""

from __future__ import annotations

from slurm_resolver.slurm.variable_types import (
    Variable,
    Variables,
    number_variable,
    parse_switch,
    text_variable,
)


class Settings(Variables):
    """This package's variables in one task; times are in seconds."""

    # set by the user: "off" trains alone
    resolver_switch = Variable("SLURM_RESOLVER", parse_switch, "on or off")
    network_grace = number_variable("SLURM_RESOLVER_NETWORK_GRACE", 1, 86_400)
    start_timeout = number_variable("SLURM_RESOLVER_START_TIMEOUT", 1, 604_800)
    stall_seconds = number_variable("SLURM_RESOLVER_STALL_SECONDS", 0, 604_800)
    # whether a training says at its end where the time went
    usage_report = Variable("SLURM_RESOLVER_REPORT", parse_switch, "on or off")
    # how many steps are compared with one process
    verified_steps = number_variable("SLURM_RESOLVER_VERIFY", 0, 1_000_000)
    # set by `slurm-resolver run`, whose jobs are unknown to Slurm
    simulated_job = text_variable("SLURM_RESOLVER_JOB")
    # set by a task that had to ask the others, for its child processes
    exchanged_layout = text_variable("SLURM_RESOLVER_LAYOUT")
    # set by a resolver that has set the GPU variables of its task
    gpus_applied = text_variable("SLURM_RESOLVER_GPUS")
    # set by `supervise` for a step that it has started again
    step_restart = number_variable("SLURM_RESOLVER_STEP_RESTART", 0, 2**31 - 1)
