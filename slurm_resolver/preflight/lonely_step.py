"""Steps in which a task is alone although it seems meant to be one of several.

Who starts srun once a task, or `slurm-resolver run` in each task, gets as many trainings as tasks,
each of which is worker 0 of one.
"""

from __future__ import annotations

from slurm_resolver.slurm.step import SlurmStep


def advise_on_lonely_step(step: SlurmStep) -> str:
    """Returns what to write instead where a step has one task, and its job place for several.

    '' for any other step. Only what was asked for the job itself is known here: its nodes, and its
    tasks on each.
    """
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
    """Returns what to write instead of `slurm-resolver run` in each of several tasks of srun.

    '' elsewhere, and in all tasks but the first, which speaks for them.
    """
    if step.place != "step" or (step.num_tasks or 1) < 2 or step.rank != 0:
        return ""
    steps = step.num_tasks or 1
    return (
        f"each of the {steps} tasks of step {step.name} runs this command, and starts {num_tasks} "
        f"tasks of its own: {steps} separate trainings. For one training of all, start the program "
        f"itself with srun: srun -n {steps * num_tasks} …"
    )
