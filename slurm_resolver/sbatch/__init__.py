"""Batch files: the settings that `slurm-resolver sbatch` gets, and the file that it prints.

The file is one template in `script`, in which the lines that a setting needs carry its name. What
sbatch would refuse hours later, or read as something else, `settings` refuses at once.
"""
