"""From one task's variables to the cluster: node, job, index, address and GPUs of every task.

Read the modules in this order: `layout` (with `distribution`, `arbitrary`, `het_groups`, and
`layout_exchange` for layouts that no variable tells), `roles` (with `ring_order`), `ports`,
`node_address`, `tasks`, `gpus`, `cluster`, `resolve`.
"""
