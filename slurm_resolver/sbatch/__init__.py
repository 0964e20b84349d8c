"""Batch files: what `slurm-resolver sbatch` is asked for, and the file that it prints."""
