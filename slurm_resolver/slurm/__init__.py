"""What Slurm says: the variables of one task, host lists, times, and the answers of scontrol."""
