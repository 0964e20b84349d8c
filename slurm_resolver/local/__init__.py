"""The launcher behind `slurm-resolver run`: a step of several tasks without Slurm."""

# The Slurm whose srun is imitated: its variables, file names, signals, and bindings.
IMITATED_SLURM = "26.05"
