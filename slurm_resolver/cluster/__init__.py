"""From one task's variables to the cluster: node, job, index, address and GPUs of every task.

`resolve` shows the way; read it first. Its steps are `alone` (does this process train alone?),
`layout` with `components` (where every rank runs) or `layout_exchange` (the tasks tell each other),
`jobs`, `roles` and `ring_order` (which job it has), `ports` and `addresses`, `gpus` and
`task_gpus`. The result is in `cluster`, and what other programs read in `contracts`.
"""
