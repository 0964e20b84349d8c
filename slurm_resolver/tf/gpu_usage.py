"""How much of its GPUs a process uses: TensorFlow's memory there, and NVML's utilization.

NVML is read by the package nvidia-ml-py, if that is installed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
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
        for device in tf.config.list_logical_devices("GPU"):
            with suppress(Exception):  # some allocators do not count
                name = device.name.rpartition("device:")[2]
                peak = tf.config.experimental.get_memory_info(name)["peak"]
                self.peak_memory = max(self.peak_memory, peak)
        with suppress(Exception):  # NVML's own errors: the report has no such figure
            for handle in self._handles:
                nvml = import_module("pynvml")
                self.busy.append(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    @cached_property
    def _handles(self) -> list[object]:
        """NVML's handles of the GPUs that this process sees."""
        if not tf.config.list_logical_devices("GPU"):
            return []
        try:
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            every = ",".join(map(str, range(nvml.nvmlDeviceGetCount())))
            return [
                nvml.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdecimal()
                else nvml.nvmlDeviceGetHandleByUUID(name)
                for name in os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",")
            ]
        except Exception:  # no package, no NVML, or parts of GPUs
            return []
