"""How much of its GPUs a process uses: TensorFlow's memory there, and NVML's utilization.

NVML is read by the package nvidia-ml-py, if that is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import os

import tensorflow as tf


class GpuUsage:
    """What this process uses of its GPUs; without GPUs, the results are 0 and None."""

    # NVML's, of this process' GPUs; None before the first sample.
    _handles: list[object] | None = None

    def __init__(self) -> None:
        self._samples = 0
        self._busy = 0.0  # the sum of the samples

    @staticmethod
    def peak_memory() -> int:
        """Returns the most bytes that TensorFlow had allocated on one of the GPUs."""
        peaks = [0]
        for device in tf.config.list_logical_devices("GPU"):
            with contextlib.suppress(Exception):  # some allocators do not count
                name = device.name.rpartition("device:")[2]
                peaks.append(tf.config.experimental.get_memory_info(name)["peak"])
        return max(peaks)

    def busy(self) -> float | None:
        """Returns the share of the samples' time in which the GPUs had work; None without any."""
        return round(self._busy / self._samples, 3) if self._samples else None

    def sample(self) -> None:
        """Samples the share of the last second or so in which the GPUs had work."""
        if self._handles is None:
            self._handles = self._find()
        with contextlib.suppress(Exception):  # NVML's own errors: the report has no such figure
            for handle in self._handles:
                self._busy += self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                self._samples += 1

    def _find(self) -> list[object]:
        """Returns NVML's handles of the GPUs that this process sees."""
        if not tf.config.list_logical_devices("GPU"):
            return []
        try:
            self._nvml = nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            every = ",".join(map(str, range(nvml.nvmlDeviceGetCount())))
            names = os.environ.get("CUDA_VISIBLE_DEVICES", every)
            return [
                nvml.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdecimal()
                else nvml.nvmlDeviceGetHandleByUUID(name)
                for name in names.split(",")
            ]
        except Exception:  # no package, no NVML, or parts of GPUs
            return []
