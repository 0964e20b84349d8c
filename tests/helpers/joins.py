"""A process whose main thread waits for ever for the end of a thread, as `Server.join()` does.

The arguments are what else it does: "works" uses a CPU in a thread of Python's, "wakes" has a
signal wake the main thread now and then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

libc = ctypes.CDLL(None)


def again_and_again(what: str) -> None:
    while True:
        time.sleep(0.01)
        if what == "works":
            until = time.process_time() + 0.03
            while time.process_time() < until:
                pass
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def main() -> None:
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    for what in sys.argv[1:]:
        threading.Thread(target=again_and_again, args=(what,), daemon=True).start()
    thread = ctypes.c_ulong()
    pause = ctypes.cast(libc.pause, ctypes.c_void_p)
    libc.pthread_create(ctypes.byref(thread), None, pause, None)
    print(os.getpid(), flush=True)
    libc.pthread_join(thread, None)


if __name__ == "__main__":
    main()
