"""What both strategies do before the first step of a training, without TensorFlow.

`ready` finds who trains together (`find_group`), and waits until every task has started, agrees
with the others and can listen at its port; `transport` tells which library can reduce the
gradients, NCCL or gRPC, in all tasks alike; `keras_version` refuses versions of Keras that train
wrongly on several workers. `probe` holds the questions that a task asks a port. A problem is an
error in every task, before TensorFlow waits for ever. The checks of `slurm-resolver check` in
`preflight/` build on these modules.
"""
