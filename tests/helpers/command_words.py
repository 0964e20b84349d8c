"""Commands that pages tell people to type, read word by word as the programs would read them."""

from __future__ import annotations

import argparse
import ast
import builtins
import shlex
from pathlib import Path
from typing import Any, Dict, List

from slurm_resolver.cli import build_parser

# what may stand after the options of srun
_PROGRAMS = ("python", "slurm-resolver", "env", "bash")


def words_of(command: str) -> List[str]:
    """Returns a command's words as a shell splits them, without the comment behind it."""
    return shlex.split(command, comments=True)


class _Names(Dict[str, Any]):
    """Names in an argument's description: Python's own, and anything for the module's."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise AssertionError(f"{self.prog}: {message}")


def parser_of(script: Path) -> argparse.ArgumentParser:
    """Returns a parser with a script's arguments, which is not started for that."""
    parser = _Parser(prog=script.name, allow_abbrev=False)
    names = _Names(parser=parser, Path=Path)
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "parser.add_argument":
            eval(compile(ast.Expression(node), str(script), "eval"), {}, names)
    return parser


def program_after_options(words: List[str]) -> List[str]:
    """Returns the words from the program on, of srun's without its own name."""
    first = next(place for place, word in enumerate(words) if word in _PROGRAMS)
    return words[first:]


def check_words(words: List[str], folder: Path) -> None:
    """Fails where a program does not know a word, or a file is not there from this folder."""
    if words[0] == "python":
        arguments = [word for word in words[1:] if word != "-u"]
        script = folder / arguments[0]
        assert script.is_file(), script
        unknown = parser_of(script).parse_known_args(arguments[1:])[1]
        if "parse_known_args" in script.read_text(encoding="utf-8"):  # the rest is train.py's
            unknown = parser_of(script.parent / "train.py").parse_known_args(unknown)[1]
        assert unknown == []
    elif words[0] == "slurm-resolver":
        build_parser([words[1]]).parse_args(words[1:])
        # what exec fills in, and run leaves as it is
        filled = [word.replace("{job}", "worker").replace("{index}", "0") for word in words]
        check_words(filled[filled.index("--") + 1 :], folder)
    elif words[0] == "env":
        check_words([word for word in words[1:] if "=" not in word or word[0] == "-"], folder)
    elif words[0] == "bash":
        assert (folder / words[1]).is_file()
        check_words(program_after_options(words[2:]), folder)
    elif words[0] == "srun":
        for component in " ".join(map(shlex.quote, words[1:])).split(" : "):
            check_words(program_after_options(shlex.split(component)), folder)
    elif words[0] == "salloc":
        check_words(words[words.index("srun") :], folder)
    else:
        raise AssertionError(f"nobody has said how {words[0]} reads its words")
