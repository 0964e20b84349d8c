"""Everything that imports TensorFlow."""

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "SlurmClusterResolver needs TensorFlow, and so do MultiWorkerMirroredStrategy, "
        "ParameterServerStrategy, termination_config, BackupAndResume, ResumableLoop and install, "
        f"but it cannot be imported here ({error}). Load your site's TensorFlow module, or "
        "install one: pip install 'tensorflow>=2.15' (without GPUs tensorflow-cpu). "
        "The rest of slurm_resolver works without."
    ) from error
