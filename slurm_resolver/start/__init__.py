"""What both strategies do before the first step of a training, without TensorFlow.

`ready` finds who trains together (`find_group`), and waits until every task has started, agrees
with the others, can listen at its port, and answers the others there, as `probe` finds out.
`transport` chooses the library that reduces the gradients, NCCL or gRPC, in all tasks alike;
`proxy` keeps gRPC's connections away from a proxy; `keras_version` refuses versions of Keras that
train wrongly on several workers. A problem is an error in every task, before TensorFlow waits for
ever. The checks of `slurm-resolver check` in `preflight/` use these modules.
"""
