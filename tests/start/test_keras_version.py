"""Some versions of TensorFlow and Keras are refused."""

from __future__ import annotations

import sys
from importlib import metadata, util
from types import SimpleNamespace

import pytest
from captured import Patch

from slurm_resolver.errors import KerasError
from slurm_resolver.preflight.version_check import cuda_problem, find_keras, tensorflow_problem
from slurm_resolver.start import keras_version


def test_a_version_that_trains_wrongly_is_an_error(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.9.2"))
    with pytest.raises(
        KerasError, match=r"Keras 3\.9\.2 trains incorrectly .* pip install 'keras>=3"
    ):
        keras_version.check_keras()
    for version in ("2.15.0", "3.10.0", "3.16.0.dev2026102704", "3.17.0"):
        monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__=version))
        keras_version.check_keras()


OLD = "Keras 3.9.2 trains incorrectly on several workers"
# By what is installed: what `check` says of TensorFlow, of GPUs and of Keras.
INSTALLED = {
    "tensorflow 2.21.0, keras 3.15.1": ("", "", "Keras 3.15.1"),
    "tensorflow-cpu 2.21.0, keras 3.9.2": ("", "this task has GPUs, but tensorflow-cpu", OLD),
    "tensorflow 2.21.0, keras 3.9.2, tf_keras 2.21.0": ("", "", "Keras 3.9.2, tf_keras 2.21.0"),
    "tensorflow 2.15.0, keras 2.15.0": ("", "", "Keras 2.15.0"),
    "keras 3.15.1": ("not installed: load your site's module", "", "Keras 3.15.1"),
}


@pytest.mark.parametrize("installed", INSTALLED)
def test_what_check_says(installed: str, monkeypatch: Patch) -> None:
    versions = dict(part.split(" ") for part in installed.split(", "))

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    said = (tensorflow_problem(), cuda_problem(), "".join(find_keras()))
    for text, told in zip(said, INSTALLED[installed]):
        assert text.startswith(told)
        assert bool(text) == bool(told)
