"""Batch files: the settings that `slurm-resolver sbatch` gets, and the file that it prints."""
