"""Batch files: the settings that `slurm-resolver sbatch` gets, and the file that it prints.

The file is a list of texts in `script`, each with the setting that needs it. What
sbatch would refuse hours later, or read as something else, `settings` refuses at once.
"""
