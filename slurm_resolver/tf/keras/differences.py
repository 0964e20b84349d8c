"""Finds what differs from worker to worker, and says which worker has what.

Workers train as one process only if they hold the same and do the same. Most comparisons cost one
message, with a digest. Only if the digests differ do the workers exchange what these are made of,
in blocks, until the first difference. It is a FitError in every worker.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from slurm_resolver.errors import FitError
from slurm_resolver.log import tell_once
from slurm_resolver.tf.exchange import Workers

_AT_ONCE = 25  # entries that fit into one message
_SHOWN = 200  # characters of a name or a text
_ROUNDING = 1e-3  # how far numbers may differ by rounding alone, relative to their norm
REMEDY = (
    "Do the same in all workers: leave out what lets one worker alone change the training, such as "
    "a callback, a learning rate or weights in `if task_id == 0:`."
)
REMEDY_OF_DATA = (
    "Expected the same global batches in the same order in every worker, of which each takes its "
    "rows. Seed whatever shuffles or generates the data alike in all workers, such as "
    "keras.utils.set_random_seed(1) and numpy.random.default_rng(1), sort the names of files, and "
    "leave out deterministic=False. If an earlier call has read a dataset that shuffles and "
    "repeats, make a new one. "
    "Data that differs between workers needs AutoShardPolicy.OFF, and steps_per_epoch if its "
    "length differs."
)

_REMEDY_OF_ORDER = (
    "Their order alone differs, as that of Python's sets does from process to process. Sort what "
    "is made of a set. If a library makes it, give all processes one order: export "
    "PYTHONHASHSEED=0 before srun."
)


class Entry(NamedTuple):
    """One of the values that the workers compare.

    Attributes:
        name: such as "model.optimizer (SGD).momentum".
        text: what has to be the same.
        number: a float, which may differ by rounding; see `norm`.
        norm: of the numbers that `number` is computed from.
    """

    name: str
    text: str
    number: float = 0.0
    norm: float = 0.0


_NOTHING = ("the model", 0, "nothing", 0.0, 0.0)  # of a worker that has fewer entries


def compare(
    workers: Workers,
    when: str,
    entries: Iterable[Entry],
    remedy: str = REMEDY,
    digest: object = None,
) -> None:
    """Raises FitError in every worker with the first entry that differs from worker to worker.

    Args:
        workers: which all call this.
        when: such as "after epoch 2".
        entries: of this worker. With a digest, they are only read if the digests differ.
        remedy: the end of the error.
        digest: what differs if an entry differs; by default, the list of the entries.
    """
    call = f"compares its model {when}"
    compared = repr(entries if digest is None else digest)
    if len(set(workers.exchange(call, zlib.crc32(compared.encode())))) == 1:
        return
    remaining = iter(entries)
    while True:
        block = [
            [name[:_SHOWN], zlib.crc32(text.encode()), text[:_SHOWN], number, norm]
            for name, text, number, norm in itertools.islice(remaining, _AT_ONCE)
        ]
        blocks = workers.exchange(call, block)
        if not any(blocks):
            break
        for column in itertools.zip_longest(*blocks, fillvalue=_NOTHING):
            found, digests, texts, numbers, norms = zip(*column)
            # Only floats are rounded: a step counts the same in all workers.
            rounding = _ROUNDING * max(norms) * ("float" in texts[0])
            values = texts
            if len(set(digests)) == 1:
                if np.allclose(numbers, numbers[0], rtol=0.0, atol=rounding, equal_nan=True):
                    continue
                values = tuple(map(_describe, numbers, norms))
            elif len({frozenset(text.strip("[()]").split(", ")) for text in texts}) == 1:
                remedy = _REMEDY_OF_ORDER
            raise difference(workers, when, found[0], values, remedy)
    tell_once(
        "the workers' weights differ by rounding: their processors, or GPUs that add up in any "
        "order, compute the same step differently. For equal weights, use nodes of one kind, and "
        "on GPUs also tf.config.experimental.enable_op_determinism()"
    )


def _describe(number: float, norm: float) -> str:
    """Describes a variable by what `Entry` has of it: a single number by itself."""
    if abs(number) == norm:
        return f"{number:.6g}"
    return f"norm {norm:.6g}, projection {number:.6g}"


def difference(
    workers: Workers, when: str, name: str, values: Sequence[str], remedy: str
) -> FitError:
    """Returns the error that says which worker has which value."""
    return FitError(
        f"the workers differ {when or 'in this step'}, in {name}: {workers.holders(values)}. "
        f"{remedy}"
    )
