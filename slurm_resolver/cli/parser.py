"""A parser whose errors come before the usage, and tell which word may have been meant."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Collection, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse's, where what is wrong is read first: the usage of some commands fills a screen."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As argparse does, but words that nobody knows are an error of this very command."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown[0])
        return found, unknown

    def refuse(self, word: str) -> NoReturn:
        """Ends for a word that is not known: an option, or an argument too many."""
        if word.startswith("-"):
            name = word.partition("=")[0]
            options = [option for option in self._option_string_actions if option != "-"]
            self.error(f"unknown option {name}{did_you_mean(name, options)}")
        self.error(f"unexpected argument {word!r}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            meant = did_you_mean(str(value), [str(choice) for choice in action.choices or ()])
            raise argparse.ArgumentError(action, f"{error.message}{meant}") from None

    def error(self, message: str) -> NoReturn:
        """Prints the message, then the usage, and exits with status 2."""
        print(f"{self.prog}: {message}\n", file=sys.stderr)
        self.print_usage(sys.stderr)
        print(f"\nTo read more: {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Returns the question with the known word that is closest to this one; "" if none is."""
    from difflib import get_close_matches

    names = {name.lstrip("-"): name for name in known}
    close = get_close_matches(word.lstrip("-"), names, 1, 0.7)
    return f": did you mean {names[close[0]]}?" if close else ""
