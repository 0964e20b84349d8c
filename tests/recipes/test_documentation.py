"""The guides in docs/: commands run, links have targets, and pictures show current output."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pictures
import pytest
from bare_state import shell_commands
from folders import ROOT
from kinds import Strings
from local_run import captured
from page_blocks import GUIDES, PAGES, name_of
from slurm_cluster import SlurmCluster
from slurm_jobs import ENVIRONMENT

README_COMMANDS = shell_commands(ROOT / "README.md")  # test_readme.py runs these
ALL_COMMANDS = dict.fromkeys(command for page in GUIDES for command in shell_commands(page))
GUIDE_COMMANDS = [command for command in ALL_COMMANDS if command not in README_COMMANDS]


def of_kind(kind: str, trains: bool) -> Strings:
    """Returns the commands that start with this word, and that train or not."""
    found = [one for one in GUIDE_COMMANDS if one.split()[0] == kind]
    return [one for one in found if ("train.py" in one and ">" not in one) == trains]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that the commands use, because some write to the current folder."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "tests/data"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def run(command: str, folder: Path) -> str:
    """Runs a command line of a guide in a folder, and returns its output."""
    return captured(
        command,
        status=int("slurm-resolver explain" in command),
        shell=True,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
    ).stdout


@pytest.mark.parametrize("command", of_kind("slurm-resolver", False))
def test_commands_run_here(command: str, checkout: Path) -> None:
    _, _, file = command.partition(" > ")
    assert run(f"{command} && cat {file}" if file else command, checkout)


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.parametrize("command", of_kind("slurm-resolver", True))
def test_trainings_run_here(command: str, checkout: Path) -> None:
    (tasks,) = re.findall(r"-n (\d+)", command)
    # All tasks must report the same accuracy or weights.
    found = re.findall(r"(?:test accuracy|trained, weights) (\w+)", run(command, checkout))
    assert len(found) == int(tasks)
    assert len(set(found)) == 1


@pytest.mark.nightly
@pytest.mark.newest
@pytest.mark.parametrize(
    "command",
    [
        *of_kind("srun", False),
        *(pytest.param(one, marks=pytest.mark.tensorflow) for one in of_kind("srun", True)),
    ],
)
def test_commands_run_on_slurm(real_slurm: SlurmCluster, command: str, checkout: Path) -> None:
    assert real_slurm.run(
        command,
        cwd=checkout,
        env=ENVIRONMENT,
        timeout=300,
    ).stdout


def without_blocks(page: Path) -> str:
    """Returns the text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub and Sphinx create from the page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_targets(page: Path) -> None:
    for picture, target in re.findall(
        r"(!?)\[[^\]]*\]\(([^)\s]+)\)",
        re.sub(r"`[^`\n]+`", "", without_blocks(page)),
    ):
        if target.startswith(("https:", "mailto:")):
            assert not picture, f"{target}: pictures must also work offline"
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        if file.is_dir():
            assert (file / "README.md").exists() or not page.is_relative_to(ROOT / "docs"), target
        if anchor:
            assert anchor in anchors(file), target


def masked(lines: Strings) -> dict[int, str]:
    """Returns the words of these lines, with every number replaced by 0.

    Numbers such as ports, ids and times differ between runs. Longer numbers also make frames wider
    and break lines elsewhere, so widths and line breaks are dropped as well.
    """
    text = re.sub(r"\d+(\.\d+)*", "0", " ".join(lines))
    text = re.sub("─+", "─", text)
    return dict(enumerate(re.sub(r"0-0", "0", " ".join(text.split())).split(" ")))


@pytest.mark.nightly
@pytest.mark.newest
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", pictures.COMMANDS)
def test_pictures_are_what_commands_print(real_slurm: SlurmCluster, name: str) -> None:
    done = real_slurm.run(
        pictures.in_terminal(name),
        env={**ENVIRONMENT, **pictures.ENVIRONMENT},
        cwd=ROOT,
        status=int(name == "explain"),
    )
    current = pictures.text_of(pictures.draw(name, done.stdout))
    drawn = pictures.text_of((pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
    assert drawn[0] == current[0] == f"$ {pictures.COMMANDS[name]}"
    assert masked(drawn) == masked(current)


def test_the_command_that_exports_a_secret_works(tmp_path: Path) -> None:
    (command,) = of_kind("export", False)
    program = "from slurm_resolver.coordination.secret import find_means as f; print(f())"
    assert run(f'{command}; python -c "{program}"', tmp_path) == "SLURM_RESOLVER_SECRET\n"


@pytest.mark.nightly
@pytest.mark.root
@pytest.mark.tensorflow
@pytest.mark.parametrize("table", ["outages", "stops --grace 6"])
def test_the_table_of_outages(table: str) -> None:
    """Writes the table; the status is 1 if a row of it is wrong."""
    program = str(ROOT / "docs" / "outages.py")
    captured(
        [sys.executable, program, *table.split(), "--write"],
        status=0,
        timeout=3600,
    )
