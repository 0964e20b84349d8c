"""Trains with the `verbose` that its first argument names, or creates the strategy too late."""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf

from slurm_resolver import MultiWorkerMirroredStrategy

if "late" in sys.argv:
    tf.constant([1, 2])
strategy = MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
verbose = {"verbose": int(sys.argv[1])} if sys.argv[1].isdecimal() else {}
model.fit(np.ones((16, 4)), np.ones((16, 1)), epochs=2, **verbose)
