"""The launcher behind `slurm-resolver run`: a step of several tasks without Slurm."""
