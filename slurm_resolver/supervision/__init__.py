"""`slurm-resolver supervise`: starts a step again inside its allocation when it has failed."""
