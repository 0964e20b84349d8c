"""The variables of other programs that describe a task: launchers, GPUs and TensorFlow."""

from __future__ import annotations

from slurm_resolver.slurm.variable_types import Variables, devices_variable, text_variable


class ForeignVariables(Variables):
    """The variables in one task that are neither Slurm's nor this package's."""

    # only the ranks of an mpirun have them: mpirun(1) of Open MPI, and live runs of MPICH
    openmpi_local_rank = text_variable("OMPI_COMM_WORLD_LOCAL_RANK")
    mpich_local_rank = text_variable("MPI_LOCALRANKID")
    # NVIDIA's and AMD's; Slurm sets them as well
    cuda_devices = devices_variable("CUDA_VISIBLE_DEVICES")
    rocr_devices = devices_variable("ROCR_VISIBLE_DEVICES")
    hip_devices = devices_variable("HIP_VISIBLE_DEVICES")
    ordinal_devices = devices_variable("GPU_DEVICE_ORDINAL")
    # TensorFlow's: whether it takes the memory of a GPU only as it needs it
    allow_growth = text_variable("TF_FORCE_GPU_ALLOW_GROWTH")
