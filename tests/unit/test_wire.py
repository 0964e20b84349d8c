"""What goes over a connection: any messages, in any pieces; and what is none."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Dict, List

import pytest
from frames import GREETING, frame
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_resolver.rendezvous.wire import Connection, Decoder, WireError, encode

LONGEST = 1000

_leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
VALUES = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=5)


def in_pieces(data: bytes, cuts: List[int]) -> List[bytes]:
    """The data, cut at these places."""
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in zip(places, places[1:])]


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_messages_arrive_whole_however_they_are_cut(
    messages: List[Dict[str, Any]], cuts: List[int]
) -> None:
    decoder = Decoder(100_000)
    data = GREETING + b"".join(map(encode, messages))
    assert [m for piece in in_pieces(data, cuts) for m in decoder.feed(piece)] == messages


@given(message=st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_the_form_is_the_described_one(message: Dict[str, Any]) -> None:
    (length,) = struct.unpack("!I", encode(message)[:4])
    assert length == len(encode(message)) - 4
    assert json.loads(encode(message)[4:]) == message
    assert Decoder(100_000, greeting=False).feed(frame(message)) == [message]


@given(data=st.binary(min_size=len(GREETING), max_size=200))
@example(GREETING + struct.pack("!I", LONGEST + 1))
@example(GREETING + frame([1]))
@example(GREETING + struct.pack("!I", 900) + b"[" * 900)
def test_what_a_stranger_sends_is_refused_or_waited_for(data: bytes) -> None:
    """It never is a message unless it is one, and no other error comes of it."""
    try:
        messages = Decoder(LONGEST).feed(data)
    except WireError:
        return
    assert data.startswith(GREETING)
    assert all(isinstance(message, dict) for message in messages)


@given(data=st.binary(min_size=1, max_size=40).filter(lambda d: d[: len(GREETING)] != GREETING))
def test_who_does_not_greet_is_refused_with_the_first_wrong_byte(data: bytes) -> None:
    same = next((i for i, (got, want) in enumerate(zip(data, GREETING)) if got != want), len(data))
    decoder = Decoder(LONGEST)
    assert decoder.feed(data[:same]) == []
    if same < len(data):
        with pytest.raises(WireError, match="no greeting"):
            decoder.feed(data[same : same + 1])


@given(length=st.integers(LONGEST + 1, 2**32 - 1))
def test_a_message_that_is_too_long_is_refused_before_it_comes(length: int) -> None:
    with pytest.raises(WireError, match=f"a message of {length} bytes"):
        Decoder(LONGEST).feed(GREETING + struct.pack("!I", length))


def test_a_connection_hands_out_one_message_after_the_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        theirs.sendall(frame({"number": 1}) + frame({"number": 2}) + frame({"number": 3})[:-1])
        connection = Connection(ours, LONGEST, greeting=False)
        assert connection.receive(time.monotonic() + 20) == {"number": 1}
        assert connection.receive(time.monotonic() + 20) == {"number": 2}
        assert connection.receive(time.monotonic() + 0.05) is None  # not whole in time
        theirs.sendall(frame({"number": 3})[-1:])
        assert connection.receive(time.monotonic() + 20) == {"number": 3}
        theirs.close()
        assert connection.receive() is None
