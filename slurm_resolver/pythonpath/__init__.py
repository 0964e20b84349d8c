"""The folder that `slurm-resolver exec` puts on PYTHONPATH to replace TensorFlow's classes.

Python imports `sitecustomize` when it starts. The one in this folder does not import TensorFlow: it
replaces the classes after the program has imported TensorFlow.
"""

from __future__ import annotations

import os

VARIABLE = "SLURM_RESOLVER_REPLACE"  # "strategy", "resolver" and "servers", separated by commas
OPTIONS = "SLURM_RESOLVER_EXEC_OPTIONS"  # the cluster's, as JSON, for "servers"
HOOK = "slurm_resolver.tf.replace:replace"  # what is called once TensorFlow has been imported
FOLDER = os.path.dirname(os.path.abspath(__file__))
