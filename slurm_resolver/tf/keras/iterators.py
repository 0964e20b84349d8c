"""Iterators over data, whose end no worker waits for.

To end an iterator, TensorFlow waits for the thread that tunes it, which sleeps for as long as the
iterator has existed, for a minute at most. That thread often misses that it is woken up: it looks
before the end is noted (`CancellationManager::StartCancelWithStatus`). In the first step of the
next epoch, all workers would wait for one that still ends its iterator.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any

from slurm_resolver.tf.keras.protocols import EpochIterator
from slurm_resolver.tf.private_names import Method

_LATER = 0.1  # seconds, in which an iterator without references is gone

# What each iterator that exists refers to.
_attributes: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


@atexit.register
def _end_iterators() -> None:
    """Ends the iterators that a traceback or a cycle still has, while Python functions can run.

    Afterwards, TensorFlow would wait without end for a generator that it reads ahead.
    """
    for iterator, attributes in list(_attributes.items()):
        attributes.clear()
        for name in vars(iterator):
            setattr(iterator, name, None)


def make_iterator(original: Method, data: EpochIterator) -> Any:
    """Returns an iterator that ends in a thread of its own."""
    iterator = iter(original(data))
    # The attributes hold what TensorFlow ends. Without this copy, they would go with the iterator.
    # Clearing the iterator's own dictionary would crash Python 3.13.0.
    attributes = _attributes[iterator] = dict(vars(iterator))
    # If the thread came first, the iterator would have the last reference.
    ends = threading.Timer(_LATER, attributes.clear)
    weakref.finalize(iterator, ends.start).atexit = False
    return iterator
