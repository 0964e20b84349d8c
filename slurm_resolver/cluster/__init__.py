"""From one task's variables to the cluster: node, job, index, address and GPUs of every task.

Read `resolve` first. It calls `alone` (does this process train alone?), `layout` (where every rank
runs) or `layout_exchange` (the tasks exchange it), `jobs`, `roles` and `ring_order` (which job
each rank has), `ports` and `addresses`, and `gpus`. The result is in `cluster`, which also writes
it as the variables that other programs read, whose names are in `contracts`.
"""
