"""`slurm-resolver supervise`: starts a step again inside its allocation when it has failed.

The batch file calls it in the place of srun. It is Python rather than shell because what it decides
(which failure is worth a restart, on which nodes) are rules that tables of cases test.
"""
