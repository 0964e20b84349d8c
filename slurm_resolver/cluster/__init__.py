"""From one task's variables to the cluster: node, job, index, address and GPUs of every task.

The words of this folder:

    layout   the node of every rank, and its local rank there
    job      TensorFlow's: chief, worker, ps or evaluator; an index counts the tasks of a job
    roles    by job and index, the rank
    cluster  all of this with ports and addresses, and the GPUs of this task

Every task computes its cluster alone, from its own variables, and all tasks of a step get the same
one: what has no answer in variables that are equal everywhere is an error, or the tasks exchange
it. Nothing else here connects to another task. Nothing changes this process but `apply_gpus`, and
`layout_exchange`, which leaves the layout to child processes in a variable.

Read `resolve` first. It calls `alone` (does this process train alone?), `layout` (where every rank
runs) or `layout_exchange` (the tasks exchange it), `roles` and `ring_order` (which job each rank
has), `ports` and `addresses`, and `task_gpus`. It returns a `cluster`, which can be printed, and
computes the variables that programs read (`frameworks`).
"""
