"""One task's variables, to which the tests add their own."""

from __future__ import annotations

# Rank 1 of two on one node.
ONE_NODE = {
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n9",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
# Rank 1 of four on two nodes that all see two GPUs.
TASK = {
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_RESV_PORTS": "23001-23003",
    "CUDA_VISIBLE_DEVICES": "4,5",
}
# The only task of a step.
ALONE = {
    **TASK,
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "n9",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
