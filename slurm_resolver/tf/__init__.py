"""Everything that imports TensorFlow."""

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "SlurmClusterResolver needs TensorFlow, and so do MultiWorkerMirroredStrategy, "
        "ParameterServerStrategy, termination_config, BackupAndResume, ResumableLoop and install, "
        f"but it cannot be imported here ({error}). Load your site's TensorFlow module, or "
        "install it: pip install 'tensorflow[and-cuda]>=2.15' for NVIDIA GPUs, or tensorflow-cpu. "
        "The rest of slurm_resolver works without it."
    ) from error

from slurm_resolver import signals

# Slurm sends a signal before the time limit to all processes of a step. A process that reads data,
# and that the program forks before this package handles the signal, must live until all is saved.
signals.ignore_in_children()
