"""Runs the tests on every Python from 3.9 on that this machine has, and on old and new TensorFlow.

On each Python the tests that need neither TensorFlow nor Slurm; on the oldest TensorFlow that is
claimed and on the newest that there is, the resolver's contract and the order of the ring as well.
The environments stay in .matrix/ and are used again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, Optional, Tuple

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
TOOLS = ["pytest", "pytest-mock", "hypothesis", "shtab"]
OLDEST = "tensorflow-cpu==2.15.*"
NEWEST = "tensorflow-cpu"
WITHOUT_TENSORFLOW = ["-m", "not slurm and not tensorflow"]
ONE_AT_A_TIME = threading.Lock()
CONTRACT = [
    "tests/test_contract.py",
    "tests/test_package.py",
    "tests/test_ring.py::test_tensorflow_visits_the_tasks_in_the_order_of_their_names",
]


def answers(program: str, version: str) -> bool:
    """Whether the program is that Python, with what a virtual environment needs."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def find_pythons() -> Dict[str, str]:
    """By version, a Python of this machine: on the path, pyenv's, or this one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for version in VERSIONS:
        candidates = [shutil.which(f"python{version}"), sys.executable]
        candidates += map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))
        for program in candidates:
            if program is not None and answers(program, version):
                found[version] = program
                break
    return found


def environment(name: str, python: str, packages: List[str]) -> Optional[Path]:
    """The virtual environment of that name with this package installed; None if pip refuses."""
    folder = ROOT / ".matrix" / name
    program = folder / "bin" / "python"
    if not program.exists():
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    with ONE_AT_A_TIME:  # each writes this package's metadata into the same folder
        done = subprocess.run([*pip, "-e", ".", *TOOLS, *packages], cwd=ROOT)
    return program if done.returncode == 0 else None


def test(program: Path, arguments: List[str]) -> bool:
    command = [str(program), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with ONE_AT_A_TIME:
        print(f"{shlex.join(command)}\n{done.stdout}", flush=True)
    return done.returncode == 0


def check_python(version: str, python: str) -> Tuple[str, bool]:
    """Runs the tests that need neither TensorFlow nor Slurm."""
    program = environment(f"python{version}", python, [])
    passed = program is not None and test(program, WITHOUT_TENSORFLOW)
    return f"Python {version}, without TensorFlow", passed


def check_tensorflow(package: str, pythons: List[Tuple[str, str]]) -> Tuple[str, bool]:
    """Runs the contract on the first of these Pythons that this TensorFlow is made for."""
    for version, python in pythons:
        age = "old" if package is OLDEST else "new"
        program = environment(f"tensorflow-{age}-{version}", python, [package])
        if program is not None:
            code = "import importlib.metadata as m; print(m.version('tensorflow-cpu'))"
            found = subprocess.run([program, "-c", code], check=True, stdout=subprocess.PIPE)
            what = f"Python {version}, TensorFlow {found.stdout.decode().strip()}"
            return what, test(program, CONTRACT)
    return f"{package}: no Python here has it", False


def main() -> int:
    pythons = find_pythons()
    print(f"Pythons: {', '.join(pythons)}; not found: {sorted(set(VERSIONS) - set(pythons))}")
    by_age = list(pythons.items())
    # Two at a time: much of the tests is waiting for processes and sockets.
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = [
            pool.submit(check_tensorflow, OLDEST, by_age),
            pool.submit(check_tensorflow, NEWEST, by_age[::-1]),
            *(pool.submit(check_python, *one) for one in by_age),
        ]
        results = [one.result() for one in running]
    print()
    for what, passed in results:
        print(f"{what}: {'passed' if passed else 'FAILED'}")
    return int(not all(passed for _, passed in results))


if __name__ == "__main__":
    sys.exit(main())
