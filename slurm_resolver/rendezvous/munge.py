"""Munge, with which Slurm itself proves who sends what: only the user's own processes read a text.

libmunge is called, not the commands `munge` and `unmunge`: a task that holds much memory would have
to fork for them, they are looked up in a PATH, and a library returns whose text it was as numbers.
It comes with munge wherever that is.

The numbers are those of munge.h, which are part of libmunge's binary interface.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import queue
import socket
import threading
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple, TypeVar, Union

SOCKET_VARIABLE = "SLURM_RESOLVER_MUNGE_SOCKET"
ANSWER_SECONDS = 5.0

_LIBRARY = "libmunge.so.2"  # find_library would start processes to look for it
_CIPHER, _SOCKET, _UID_RESTRICTION = 0, 8, 9  # munge_opt_t
_NO_CIPHER, _AES128 = 0, 4  # munge_cipher_t
_ANY_UID = 0xFFFFFFFF
# munge_err_t: expired, from the future, decoded before on this node. The text comes with them.
_READ, _EXPIRED, _REWOUND, _REPLAYED = 0, 15, 16, 17

T = TypeVar("T")


class MungeError(Exception):
    """Munge is there and does not do what it is asked; the message says what it does."""


class Decoded(NamedTuple):
    """What was in a credential, and the user id of the process that made it."""

    payload: bytes
    uid: int


class Munge:
    """The munge of this node, by way of libmunge. Any thread may use it."""

    def __init__(self, path: Optional[str] = None, seconds: float = ANSWER_SECONDS) -> None:
        """Loads libmunge.

        Args:
            path: of munged's socket; None for the one that libmunge was built with.
            seconds: the most that munged has for an answer.

        Raises:
            OSError: where there is no libmunge.
        """
        self._library = ctypes.CDLL(_LIBRARY)
        self._seconds = seconds
        self._own_uids: Dict[int, int] = {}  # by what this process takes its own for
        library, context = self._library, ctypes.c_void_p
        library.munge_ctx_create.restype = context
        library.munge_ctx_destroy.argtypes = [context]
        library.munge_ctx_destroy.restype = None
        # What follows these two is of a type that depends on the second.
        library.munge_ctx_set.argtypes = [context, ctypes.c_int]
        library.munge_ctx_get.argtypes = [context, ctypes.c_int]
        library.munge_ctx_strerror.argtypes = [context]
        library.munge_ctx_strerror.restype = ctypes.c_char_p
        library.munge_strerror.restype = ctypes.c_char_p
        buffer = ctypes.POINTER(ctypes.c_void_p)
        library.munge_encode.argtypes = [buffer, context, ctypes.c_char_p, ctypes.c_int]
        library.munge_decode.argtypes = [
            ctypes.c_char_p,
            context,
            buffer,
            ctypes.POINTER(ctypes.c_int),
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.POINTER(ctypes.c_uint32),
        ]
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None
        self.path = path or self._default_path()

    def listens(self) -> bool:
        """Returns whether a munged has the socket, without a connection that it would notice."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            try:
                asking.connect(self.path)
            except (OSError, ValueError) as error:
                # A socket of the other type is there, and a process has it; if none had, the kernel
                # would say that it refuses.
                return getattr(error, "errno", None) == errno.EPROTOTYPE
        return False

    def own_uid(self) -> int:
        """Returns this process's user id as munged sees it.

        That is another one than `os.geteuid()` in a container with user ids of its own.

        Raises:
            MungeError: where munged does not answer, or as `encode` and `decode`.
        """
        uid = os.geteuid()
        if uid not in self._own_uids:
            # This credential never leaves the process, so it need not be restricted.
            self._own_uids[uid] = self.decode(self._encode(b"", _ANY_UID)).uid
        return self._own_uids[uid]

    def encode(self, payload: bytes) -> str:
        """Returns a credential that only processes of this user can decode.

        It is always encrypted: munge's default is AES-128 as well, but munge can also be built, or
        a default be chosen, so that the payload can be read by anybody.

        Raises:
            MungeError: where munged does not do it.
        """
        return self._encode(payload, self.own_uid())

    def decode(self, credential: str) -> Decoded:
        """Returns what a credential contains, also where it is old or was decoded before.

        Raises:
            MungeError: where it is for another user, of a munge with another key, not encrypted,
                or no credential; where munged does not answer.
        """
        try:
            text = credential.encode("ascii")
        except UnicodeEncodeError:
            raise MungeError("that is no credential") from None
        return self._bounded(lambda: self._decode(text))

    def _encode(self, payload: bytes, uid: int) -> str:
        return self._bounded(lambda: self._encode_now(payload, uid))

    def _encode_now(self, payload: bytes, uid: int) -> str:
        library, credential = self._library, ctypes.c_void_p()
        with self._context() as context:
            library.munge_ctx_set(context, _CIPHER, ctypes.c_int(_AES128))
            library.munge_ctx_set(context, _UID_RESTRICTION, ctypes.c_uint32(uid))
            status = library.munge_encode(ctypes.byref(credential), context, payload, len(payload))
            try:
                if status or not credential.value:
                    raise MungeError(self._explain(status, context))
                return ctypes.string_at(credential.value).decode("ascii")
            finally:
                self._free(credential)

    def _decode(self, credential: bytes) -> Decoded:
        library, payload, length = self._library, ctypes.c_void_p(), ctypes.c_int()
        uid, gid, cipher = ctypes.c_uint32(_ANY_UID), ctypes.c_uint32(), ctypes.c_int()
        with self._context() as context:
            status = library.munge_decode(
                credential,
                context,
                ctypes.byref(payload),
                ctypes.byref(length),
                ctypes.byref(uid),
                ctypes.byref(gid),
            )
            try:
                if status not in (_READ, _EXPIRED, _REWOUND, _REPLAYED):
                    raise MungeError(self._explain(status, context))
                library.munge_ctx_get(context, _CIPHER, ctypes.byref(cipher))
                if cipher.value == _NO_CIPHER:
                    raise MungeError("the credential is not encrypted")
                data = ctypes.string_at(payload.value, length.value) if payload.value else b""
                return Decoded(data, uid.value)
            finally:
                self._free(payload)

    @contextlib.contextmanager
    def _context(self) -> Iterator[ctypes.c_void_p]:
        context = ctypes.c_void_p(self._library.munge_ctx_create())
        if not context.value:
            raise MungeError("out of memory")
        try:
            path = getattr(self, "path", None)
            if path:
                text = ctypes.c_char_p(os.fsencode(path))
                self._library.munge_ctx_set(context, _SOCKET, text)
            yield context
        finally:
            self._library.munge_ctx_destroy(context)

    def _default_path(self) -> str:
        path = ctypes.c_char_p()
        with self._context() as context:
            self._library.munge_ctx_get(context, _SOCKET, ctypes.byref(path))
            return os.fsdecode(path.value or b"")

    def _explain(self, status: int, context: ctypes.c_void_p) -> str:
        text = self._library.munge_ctx_strerror(context) or self._library.munge_strerror(status)
        return bytes(text or b"").decode(errors="replace") or f"libmunge's error {status}"

    def _bounded(self, call: Callable[[], T]) -> T:
        """Returns what a call does, in a thread of its own: libmunge waits for some 10 s."""
        results: queue.Queue[Tuple[bool, Union[T, Exception]]] = queue.Queue()

        def run() -> None:
            try:
                results.put((True, call()))
            except Exception as error:
                results.put((False, error))

        try:
            threading.Thread(target=run, name="slurm_resolver munge", daemon=True).start()
            succeeded, result = results.get(timeout=self._seconds)
        except queue.Empty:
            raise MungeError(f"munged did not answer within {self._seconds:g} s") from None
        except RuntimeError as error:
            raise MungeError(str(error)) from error  # no thread can be started
        if isinstance(result, Exception) and not succeeded:
            raise result
        return result  # type: ignore[return-value]


# By the path that is asked for; None for libmunge's own. An error's text where it cannot be loaded.
_loaded: Dict[Optional[str], Union[Munge, str]] = {}


def find_munge() -> Union[Munge, str]:
    """Returns this node's munge, or in words why it cannot be used."""
    path = os.environ.get(SOCKET_VARIABLE) or None
    if path not in _loaded:
        try:
            _loaded[path] = Munge(path)
        except (OSError, AttributeError):
            _loaded[path] = f"there is no {_LIBRARY}"
    munge = _loaded[path]
    if isinstance(munge, Munge) and not munge.listens():
        return f"no munged listens at {munge.path}"
    return munge
