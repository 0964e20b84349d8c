"""The messages whose cause is known: those of `messages.ini`."""

from __future__ import annotations

import configparser
import pkgutil
from typing import NamedTuple


class KnownMessage(NamedTuple):
    """A message with its cause and its remedy.

    Attributes:
        cues: texts that are quick to search for, separated by `|`; every line with the message
            contains one.
        pattern: what such a line matches; by default the cues.
        kind: "cause"; "request" (a cause that lies in what srun is asked for, and comes at each
            start); "hint" (a cause if the program has failed, and no harm otherwise); "effect" (a
            task writes it because of another task, or of a connection to one); "end" (how a task
            or the job has ended); "note" (it does no harm); "hidden" (no finding).
        hides: the ids and kinds of messages that say nothing beside this one, between spaces.
        settled: what a later line matches that settles it, such as a step that begins after it
            waited; it is then no finding.
    """

    id: str
    cues: str
    cause: str
    remedy: str
    pattern: str
    kind: str
    hides: str
    settled: str


CAUSES = ("cause", "request")  # the kinds of messages that say why
FAULTS = (*CAUSES, "effect")
_TEXTS = ("cause", "remedy")  # a space joins the lines of these values, and nothing the others


def _read_messages() -> dict[str, KnownMessage]:
    """Returns the messages by id, in the order in which a line is compared with them."""
    table = pkgutil.get_data(__package__, "messages.ini")
    assert table
    sections = configparser.ConfigParser(interpolation=configparser.ExtendedInterpolation())
    sections.read_string(table.decode("utf-8"))
    return {
        id: KnownMessage(
            id,
            *[
                sections[id][name].replace("\n", " " if name in _TEXTS else "")
                for name in KnownMessage._fields[1:]
            ],
        )
        for id in sections.sections()
    }


MESSAGES = _read_messages()
