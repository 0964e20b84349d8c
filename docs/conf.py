"""Configures Sphinx for `make docs`, which writes docs/_build/docs/index.html.

docs/_build/index.html leads there.

The source folder is the repository, so that relative links between docs/, examples/ and the top
folder work both in the built pages and in the plain files.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]

from slurm_resolver.version import __version__  # noqa: E402

project = "slurm_resolver"
author = "slurm_resolver developers"
project_copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_help",
    "folder_links",
]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "docs/*.md",
    "examples/README.md",
    "examples/**/README.md",
    "benchmarks/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [".*", "docs/_build", "build", "dist"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# The docstrings do not need these packages. They are mocked during the whole build, because the
# package imports a module when one of its public names is first used.
autodoc_mock_imports = ["keras", "numpy", "pynvml", "tensorflow", "tf_keras", "wrapt"]
_mock = importlib.import_module("sphinx.ext.autodoc.mock")
sys.meta_path.insert(0, _mock.MockFinder(autodoc_mock_imports))
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
copybutton_exclude = ".linenos, .gp, .go"  # prompts and output
default_role = "literal"  # single backticks in docstrings are names

# No page here describes the classes of other packages, or the names of types.
nitpick_ignore_regex = [
    ("py:.*", r"(tf|tensorflow|keras|argparse|collections|numpy|typing)\..*"),
    ("py:.*", r"(slurm_resolver\.)?(slurm|cluster|coordination|tf|preemption)\..*"),
    ("py:class", "TerminationConfig"),  # the package's own class, in a union
    ("py:class", r"dict\[str"),  # of a signature with `<factory>`, which Sphinx divides at commas
]

html_theme = "furo"
html_title = f"slurm_resolver {release}"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
