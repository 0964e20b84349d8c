"""Saves a training on a signal and resumes it at the next step: in Keras' fit or in a loop.

A signal to any rank makes all ranks save at the same step (`termination`). One of them, the leader,
writes the checkpoint and requeues the job; then all exit with the same status. The next start
restores the newest checkpoint that all ranks can read, and goes to the position in it: the epoch,
the step, and how many batches were read.

    backup, resumable_loop    what users call: BackupAndResume and ResumableLoop
    checkpoint                the state and the position of a training, which both save
    checkpoint_folder         the files of the checkpoints
    dataset_graph             whether earlier epochs' batches must be drawn again
    earlier_epochs            reads the data of earlier epochs again
    callback_states           what the other callbacks have changed
    random_states             the global generators of random numbers
    exactness                 why a step cannot resume exactly
    fit_state                 plain values as bytes
    termination               the signal, the step at which all save, and the exit

A run that was preempted ends with the weights of an uninterrupted one. A checkpoint that cannot be
read is left, and the one before it is used; that of another model or training is an error.
"""
