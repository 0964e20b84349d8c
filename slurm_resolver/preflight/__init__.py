"""`slurm-resolver check`: whether a training can start, before TensorFlow does.

A check has an id that never changes, such as "reach", and a `Result`: ok, warning, failed or
skipped, with a sentence for people. `step_checks` runs the checks of a step. Each task makes those
that it can make alone, then all tasks exchange what they found: every task has the same results,
and one prints them. The other modules hold one subject each: CPUs and versions.
"""
