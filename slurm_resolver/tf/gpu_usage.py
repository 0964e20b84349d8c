"""How much of its GPUs a process uses: TensorFlow's memory there, and NVML's utilization.

NVML is read by the package nvidia-ml-py, if that is installed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

import tensorflow as tf


class GpuUsage:
    """What this process has used of its GPUs until the last sample.

    Attributes:
        peak_memory: the most bytes that TensorFlow had allocated on one of them; 0 without GPUs.
        busy: the percentage of each sample's last second or so in which they had work.
    """

    peak_memory = 0

    def __init__(self) -> None:
        self.busy: list[float] = []

    def sample(self) -> None:
        """Reads the memory, and whether the GPUs have work."""
        # Some allocators do not count, and there may be no package, no NVML, or parts of GPUs.
        for device in tf.config.list_logical_devices("GPU"):
            with suppress(Exception):
                name = device.name.rpartition("device:")[2]
                peak = tf.config.experimental.get_memory_info(name)["peak"]
                self.peak_memory = max(self.peak_memory, peak)
        if self.peak_memory:
            with suppress(Exception):
                nvml = import_module("pynvml")
                nvml.nvmlInit()
                every = ",".join(map(str, range(nvml.nvmlDeviceGetCount())))
                handles = [
                    nvml.nvmlDeviceGetHandleByIndex(int(name))
                    if name.isdecimal()
                    else nvml.nvmlDeviceGetHandleByUUID(name)
                    for name in os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",")
                ]
                self.busy += [nvml.nvmlDeviceGetUtilizationRates(each).gpu for each in handles]
