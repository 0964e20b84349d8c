"""What a task learns from Slurm: variables, host lists, time limits and what scontrol prints."""
