"""Which versions of Keras are refused, and which are warned of."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from slurm_resolver import log
from slurm_resolver.errors import KerasError
from slurm_resolver.preflight import keras_version


@pytest.mark.parametrize(
    ("version", "said"),
    [("2.15.0", ""), ("3.10.0", ""), ("3.16.2", ""), ("3.17.0", "pip install 'keras<3.17'")],
)
def test_a_version_that_nobody_has_tried_is_a_warning(
    version: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__=version))
    monkeypatch.setattr(log, "warned", set())
    with caplog.at_level(logging.WARNING, "slurm_resolver"):
        keras_version.check_keras()
        keras_version.check_keras()
    assert len(caplog.messages) == bool(said)
    assert said in caplog.text


def test_a_version_that_trains_wrongly_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.9.2"))
    with pytest.raises(KerasError, match=r"Keras 3\.9\.2 trains wrongly .* pip install 'keras>=3"):
        keras_version.check_keras()
