"""`slurm-resolver check`: whether a training can start, before TensorFlow does.

A check has an id that never changes, such as "reach", and a `Result`: ok, warning, failed or
skipped, with a sentence for people. `step_checks` runs the checks of a step: each task notes what
is wrong with it, then all tasks exchange their notes, and one prints the results. The other modules
hold one subject each: CPUs, versions, and the time to read TensorFlow's modules.
"""
