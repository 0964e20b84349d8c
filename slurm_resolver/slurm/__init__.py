"""What a task learns from Slurm: variables, host lists, time limits and what scontrol prints.

Slurm's words, as this package uses them:

    allocation  the nodes that Slurm has given to a job
    step        one `srun` in an allocation, such as 42.0; here it is one training
    task        one process of a step; its rank is its number in the step (SLURM_PROCID), its local
                rank that on its node (SLURM_LOCALID)
    component   of a heterogeneous job: a part with its own nodes, options and variables
    host list   names of nodes, folded: n[9-11] is n9, n10 and n11

`step_variables` lists the variables, whose types are in `variable_types`, and reads those of one
task: Slurm's, this package's and those of others. `ancestors` says what started the process,
`gpu_variables` which GPUs the variables show it, and `scontrol` asks Slurm's commands. A value that
cannot be used is an error that names the variable, the value and what to do; a variable that is not
set is None.
"""
