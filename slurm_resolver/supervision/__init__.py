"""`slurm-resolver supervise`: starts a step again inside its allocation when it has failed.

The words:

    supervisor     runs srun in place of the batch file, and decides about each next start
    step           one start of srun; its standard error is read while it is passed on
    failure        the task, the node or the signal that ended a step first
    suspect        a healthy node on which a step has failed; used if the others are too few
    spare node     a node of the job that the step does not need yet
    batch host     the node on which the batch file runs; a step on another node watches it

The guarantees: a step is not started again after it was saved or cancelled, after a signal to the
supervisor, if srun's options are refused, or when the job is about to end; nor, once no other node
is left to try, after the same failure twice without progress in between. No step is cancelled that
the supervisor has not started. The job itself is ended, or requeued, only when the batch host has
failed. The exit status is 0, that of the first failure of the last start, or 75, by which the batch
file requeues the job.

`supervisor` has the order of events, `policy` the decisions, `step` one start, and `batch_host` the
watch.
"""
