"""What a job does before its end: it watches for the signal, and is requeued.

`signal_watch` records that a signal has come, and which. The training saves, and one task
calls `requeue_job` of `exit_plan`, which asks Slurm for the requeue and says how all tasks exit (in
order: `exit_fn` of `tf/training/termination.py`). A job that was cancelled, or whose task failed,
is not requeued.
"""
