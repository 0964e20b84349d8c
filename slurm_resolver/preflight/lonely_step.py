"""Separate trainings that were probably meant to be one: srun or `run` started once a task."""

from __future__ import annotations

from slurm_resolver.slurm.step import SlurmStep


def advise_on_lonely_step(step: SlurmStep) -> str:
    """Returns what to write instead if a step has one task, and its job place for more; or ''."""
    if step.place != "step" or step.num_tasks != 1 or step.simulated:
        return ""
    nodes, each = (text or "1" for text in (step.job_num_nodes, step.job_tasks_per_node))
    tasks = int(nodes) * int(each) if nodes.isdigit() and each.isdigit() else 1
    if tasks < 2 or step.step_id is None:
        return ""
    return (
        f"step {step.name} has one task, worker 0 of a training of its own, and its job place for "
        f"{tasks}. If it was started once a task, start one step of all tasks instead: srun "
        f"-n {tasks} …"
    )


def advise_on_nested_run(step: SlurmStep, num_tasks: int) -> str:
    """Returns, in the first of several tasks of srun, what to write instead of `run`; or ''."""
    if step.place != "step" or (step.num_tasks or 1) < 2 or step.rank != 0:
        return ""
    steps = step.num_tasks or 1
    return (
        f"each of the {steps} tasks of step {step.name} runs this command, and starts {num_tasks} "
        f"tasks of its own: {steps} separate trainings. For one training of all, start the program "
        f"itself with srun: srun -n {steps * num_tasks} …"
    )
