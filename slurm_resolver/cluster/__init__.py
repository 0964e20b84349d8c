"""From one task's variables to the cluster: who runs where, as what, at which address.

Read it in this order: `layout` (with `distribution`, `arbitrary`, `het_groups`, and
`layout_exchange` where no variable tells), `roles` (with `ring_order`), `ports`, `node_address`,
`tasks`, `gpus`, `cluster`, `resolve`.
"""
