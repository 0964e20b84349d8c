"""Tests every Python from 3.9 on, old, new and nightly TensorFlow and Keras, and the wheel.

`nox` runs all sessions, `nox --session tests-3.9` runs one, and `nox --list` lists them. nox skips
sessions whose Python is not installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import nox

ROOT = Path(__file__).parent
VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
# the packages of the extra `test` that the tests without Slurm and TensorFlow import
TOOLS = ["hypothesis", "pytest>=7.4", "pytest-mock", "rich", "shtab>=1.10", "wrapt"]
QUICK = ["-m", "not slurm and not tensorflow and not nightly"]
# TensorFlow's contract for resolvers, and the package without TensorFlow
CONTRACT = ["-m", "not slurm", "-k", "test_contract or test_package"]
# one example for each strategy; those with TensorFlow's own strategies need no Keras 3
THEIRS, OURS = "custom_loop or legacy_server", "quick_start or parameter_server"
# the oldest and the newest supported versions
KERAS = ["3.10", "3.15"]
# of tests/helpers/keras_programs, some of each kind, which every version runs
PROGRAMS = [
    "loss_dice",
    "loss_masked_sequences",
    "loss_function_sum",
    "loss_two_outputs",
    "optimizer_accumulated",
    "optimizer_loss_scale",
    "step_own",
    "step_gan",
    "step_five_per_execution",
    "data_arrays_weighted_validation_split",
    "data_py_dataset",
    "data_dict_inputs",
    "data_predictions",
    "metric_auc",
    "metric_own_vector",
    "guide_saved_and_loaded",
    "guide_unbuilt_sequential",
]
# the wheel of this one has Keras' tests, and that of a nightly build has none
KERAS_WITH_TESTS = "3.15.1"

nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "virtualenv"
# without this, nox fails for a missing Python if the variable CI is set
nox.options.error_on_missing_interpreters = False


def with_pyenv(path: str) -> str:
    """Puts pyenv's Pythons before its shims, which run only the versions that the user chose."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [
        str(program.parent)
        for version in VERSIONS
        for program in sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    ]
    return os.pathsep.join([*folders, path])


os.environ["PATH"] = with_pyenv(os.environ["PATH"])
FOUND = [version for version in VERSIONS if shutil.which(f"python{version}")] or VERSIONS


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lets one nox process at a time build in this folder; `make matrix` starts several."""
    with open(ROOT / ".nox" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(session: nox.Session, *packages: str) -> None:
    """Installs this package as a path to this folder, and other packages."""
    with one_at_a_time():
        session.install("--config-settings", "editable_mode=compat", "-e", ".")
    session.install(*TOOLS, *packages)


def run_tests(session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Runs pytest without its cache, which two sessions would write at the same time."""
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, env=env)


@nox.session(python=VERSIONS)
def tests(session: nox.Session) -> None:
    """The tests that need neither Slurm nor TensorFlow."""
    install(session)
    run_tests(session, *QUICK, *session.posargs)


@nox.session
@nox.parametrize(
    "python,tensorflow",
    [
        (FOUND[0], "2.15"),
        ("3.12", "2.16"),
        ("3.12", "2.18"),
        (FOUND[-1], "newest"),
        (FOUND[-1], "candidate"),  # of the next release, if there is one
        (FOUND[-1], "nightly"),
    ],
)
def tensorflow(session: nox.Session, tensorflow: str) -> None:
    """The resolver's contract, and training with two workers, on old and new TensorFlow."""
    options_of = {"newest": [], "candidate": ["--upgrade", "--pre"], "nightly": ["--upgrade"]}
    options = options_of.get(tensorflow, [])
    package = "tf-nightly-cpu" if tensorflow == "nightly" else "tensorflow-cpu"
    if tensorflow not in options_of:
        package += f"=={tensorflow}.*"
    install(session, *options, package, "scikit-learn")
    run_tests(session, *CONTRACT)
    names = THEIRS if tensorflow == "2.15" else f"{THEIRS} or {OURS}"  # 2.15 has Keras 2
    examples = f"test_commands_of_one_machine and ({names})"
    run_tests(session, "tests/recipes/test_examples.py", "-k", examples)
    if tensorflow != "2.15":
        two_workers_with_keras(session, "installed", {})


def two_workers_with_keras(session: nox.Session, version: str, env: dict[str, str]) -> None:
    """Compares two workers with one process, with the first Keras on the path; also resumed."""
    env = {**env, "KERAS_VERSION": version, "KERAS_PROGRAMS": " ".join(PROGRAMS)}
    run_tests(session, "tests/tf/keras/test_versions.py", env=env)
    run_tests(session, "tests/tf/keras/test_fit.py", "-k", "one_process", env=env)
    run_tests(session, "tests/tf/training/test_backup.py", "-k", "restored_or_told", env=env)


def keras_folder(session: nox.Session, requirement: str) -> Path:
    """Installs a Keras into a folder for PYTHONPATH, beside the one that TensorFlow requires.

    Two packages of Keras, such as keras and keras-nightly, contain the same files.
    """
    folder = Path(session.create_tmp()).resolve() / requirement
    if not folder.exists() or "nightly" in requirement:
        shutil.rmtree(folder, ignore_errors=True)
        target = ["--no-deps", "--target", str(folder), requirement]
        session.run("python", "-m", "pip", "install", "--quiet", *target)
    return folder


@nox.session(name="keras-versions", python=FOUND[-1])
def keras_versions(session: nox.Session) -> None:
    """Compares two workers with one process on each version of Keras: `-- 3.11 3.12` selects."""
    install(session, "tensorflow-cpu")
    for version in session.posargs or KERAS:
        folder = keras_folder(session, f"keras=={version}.*")
        two_workers_with_keras(session, version, {"PYTHONPATH": str(folder)})


@nox.session(name="keras-nightly", python=FOUND[-1])
def keras_nightly(session: nox.Session) -> None:
    """Runs the programs and Keras' own tests on the nightly build of Keras, and the private names.

    The programs on several nodes need Slurm, and are skipped without it.
    """
    install(session, "tensorflow-cpu")
    env = {"PYTHONPATH": str(keras_folder(session, "keras-nightly"))}
    run_tests(session, "tests/tf/test_private_names.py", env=env)
    two_workers_with_keras(session, "installed", env)
    files = ("fit", "mirrored", "replica_step", "fit_on_slurm")
    programs = [f"tests/tf/keras/test_{name}.py" for name in files]
    run_tests(session, *programs, "--slurm", "newest", "-m", "not nightly", env=env)
    env["KERAS_SOURCES"] = str(keras_folder(session, f"keras=={KERAS_WITH_TESTS}"))
    run_tests(session, "tests/tf/keras/test_keras_own_tests.py", env=env)


@nox.session(python=FOUND[-1])
def jax(session: nox.Session) -> None:
    """Trains with two processes of Keras with JAX, as docs/unchanged_programs.md shows."""
    install(session, "jax", "keras")
    run_tests(session, "tests/recipes/test_guide_snippets.py", "-k", "jax")


KNOWN_CLASSIFIERS = """
import configparser, trove_classifiers
metadata = configparser.ConfigParser()
metadata.read("setup.cfg")
asked = set(metadata["metadata"]["classifiers"].split("\\n")) - {""}
assert asked <= trove_classifiers.classifiers, asked - trove_classifiers.classifiers
"""
WITHOUT_TENSORFLOW = """
import slurm_resolver
assert slurm_resolver.expand_hostlist("n[9-10]") == ["n9", "n10"]
try:
    slurm_resolver.SlurmClusterResolver
except ImportError as error:
    assert "pip install 'tensorflow" in str(error), error
else:
    raise AssertionError("TensorFlow is here")
"""


@contextlib.contextmanager
def bare_environment(session: nox.Session, requirement: str) -> Iterator[Callable[..., object]]:
    """Creates an environment with only this requirement, and yields a function that runs commands.

    The commands run outside the checkout and without the variables of this process.
    """
    folder = Path(session.create_tmp()).resolve() / "bare"
    session.run("python", "-m", "venv", "--clear", str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile")
    session.run(*pip, requirement, external=True)
    # env, because nox puts its own environment first in PATH
    bare = ("env", "-i", f"PATH={folder / 'bin'}:/usr/bin:/bin", f"HOME={folder}")

    def run(*command: str) -> None:
        session.run(*bare, "TF_CPP_MIN_LOG_LEVEL=2", *command, external=True)

    try:
        with session.chdir(folder):
            yield run
    finally:
        shutil.rmtree(folder)  # 2 GB with TensorFlow


@nox.session(python=FOUND[-1])
def docs(session: nox.Session) -> None:
    """Builds the guides and the reference as pages in docs/_build; a warning is an error.

    The pages load nothing from the network, and can be read offline. TensorFlow is not needed.
    """
    with one_at_a_time():
        session.install("--config-settings", "editable_mode=compat", "-e", ".[docs]")
    strict = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky"]
    session.run("sphinx-build", "--builder", "html", *strict, "-c", "docs", ".", "docs/_build")
    first = '<meta http-equiv="refresh" content="0; url=docs/index.html">\n'
    (ROOT / "docs" / "_build" / "index.html").write_text(first)


BENCHMARKS = [
    "resolution",
    "hostlists",
    "startup",
    "meeting",
    "meeting_live",
    "connection",
    "first_step",
    "keras_fit",
    "scaling",
    "collectives",
    "overlap",
    "parameter_servers",
]


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Compares with other packages, and writes the figures of benchmarks/README.md."""
    with one_at_a_time():
        everything = ".[tensorflow,examples,bench]"
        session.install("--config-settings", "editable_mode=compat", "-e", everything)
    for name in session.posargs or BENCHMARKS:
        session.run("python", f"benchmarks/{name}.py", "--write")


def write_conda_recipe(session: nox.Session, archive: Path) -> None:
    """Writes the recipe for conda-forge from the source archive."""
    folder = archive.parent.parent / "conda"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    to_folder = ("--output", str(folder), "--no-use-v1-format")
    session.run("grayskull", "pypi", str(archive), *to_folder, silent=True)
    recipe = (folder / "slurm_resolver" / "meta.yaml").read_text()
    needed = ["noarch: python", "- slurm-resolver = slurm_resolver.cli:main"]
    if not all(f"{line}\n" in recipe for line in needed) or "tensorflow" in recipe:
        session.error(f"the recipe for conda: expected {needed} and no tensorflow:\n{recipe}")


@nox.session
def package(session: nox.Session) -> None:
    """Builds wheel, source archive and conda recipe, and installs the first two elsewhere."""
    session.install("build", "grayskull", "twine", "trove-classifiers")
    session.run("python", "-c", KNOWN_CLASSIFIERS)
    folder = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    with one_at_a_time():
        session.run("python", "-m", "build", "--outdir", str(folder), silent=True)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    session.run("twine", "check", "--strict", str(wheel), str(archive))
    with zipfile.ZipFile(wheel) as opened:
        held = opened.namelist()
    folders = {name.split("/")[0].split("-")[0] for name in held}
    if folders != {"slurm_resolver"} or "slurm_resolver/py.typed" not in held:
        session.error(f"{wheel.name}: expected the package with py.typed and nothing else: {held}")
    if not any(name.endswith("/LICENSE") for name in held):
        session.error(f"{wheel.name} has no LICENSE")
    with tarfile.open(archive) as unpacked:
        held = [name.partition("/")[2] for name in unpacked.getnames()]
    needed = ["LICENSE", "setup.cfg", "tests/conftest.py", "tests/data/steps.jsonl"]
    if not set(needed) <= set(held) or any("__pycache__" in name for name in held):
        session.error(f"{archive.name}: expected {needed} and no __pycache__: {held}")
    write_conda_recipe(session, archive)
    with bare_environment(session, str(wheel)) as run:
        run("python", "-c", WITHOUT_TENSORFLOW)
        show = ("slurm-resolver", "show", "--jobs", "ps=1,worker=-1")
        run("slurm-resolver", "run", "-n", "2", "--", *show)
        good_log = ROOT / "tests" / "data" / "logs" / "good" / "leader-ends-first.log"
        run("slurm-resolver", "explain", str(good_log))  # reads messages.ini
    # The build for GPUs is twice as large and trains no better here, so it only needs to exist.
    session.run("python", "-m", "pip", "install", "--quiet", "--dry-run", f"{wheel}[tensorflow]")
    with bare_environment(session, f"{wheel}[tensorflow-cpu]") as run:
        example = ROOT / "examples" / "quick_start" / "train.py"
        run("slurm-resolver", "run", "-n", "2", "--", "python", str(example), "--epochs", "1")
    with bare_environment(session, str(archive)) as run:
        run("slurm-resolver", "--version")
