"""The shells' completion scripts, tried in the shells that are here."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from typing import List

import pytest

from slurm_resolver.cli import COMMANDS, main

# What bash does when Tab is pressed after these words, and what it would offer.
_OFFER = """
source /dev/stdin <<'SCRIPT'
{script}
SCRIPT
COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1))
complete -p slurm-resolver >/dev/null
_shtab_slurm_resolver slurm-resolver "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def offered(script: str, *words: str) -> List[str]:
    line = ["slurm-resolver", *words]
    text = _OFFER.format(script=script, words=shlex.join(line), count=len(line))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert set(offered(script, "")) >= set(COMMANDS)
    assert offered(script, "show", "--plac") == ["--placement"]
    assert offered(script, "show", "--placement", "") == ["spread", "rank"]
    assert "README.md" in offered(script, "explain", "READ")


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        assert command in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_without_shtab_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)  # importing it now fails
    assert main(["completion", "bash"]) == 2
    output, error = capsys.readouterr()
    assert output == ""
    assert error == (
        "slurm-resolver completion: shtab writes the script, and is not installed: "
        "pip install 'shtab>=1.10'\n"
    )
