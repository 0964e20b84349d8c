"""What Slurm tells a task: its variables, host lists, time limits and the output of scontrol."""
