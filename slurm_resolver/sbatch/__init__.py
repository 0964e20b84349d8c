"""Batch files: the settings that `slurm-resolver sbatch` gets, and the file that it prints.

`script` has the file as a list of texts, each with the setting that needs it. `settings` refuses at
once what sbatch would refuse hours later, or read as something else.
"""
