"""Rules for texts that are split into words, of which each replica has another number.

A replica splits the texts of its rows, and keeps the words until they are in a table with a row for
each text and a fixed number of columns, as of `TextVectorization(output_sequence_length=5)` and
`tf.strings.split(x).to_tensor(shape=[None, 5])`::

    operation              result
    StringSplitV2          places, words, shape    of the replica's texts
    LookupTableFindV2      words                   a number for each of them
    StridedSlice           texts                   places[:, 0], the text of each word
    StridedSlice           count                   shape[0], the number of texts
    RaggedTensorToTensor   ROWS                    a table of the words

Whatever else is computed of them would need the words of all rows, and strings cannot be put
together.
"""

from __future__ import annotations

import numpy as np

from slurm_resolver.tf.partition.emission import Split
from slurm_resolver.tf.partition.operation import Operation, Rules
from slurm_resolver.tf.partition.values import (
    SAME,
    Kind,
    NotByPartError,
    by_kind,
    rows,
)

# What a slice takes: of which result, where it begins, and its masks.
_SLICES = {
    ("places", (0, 0), 1, 1, 2): "texts",
    ("shape", (0,), 0, 0, 1): "count",
}
_MASKS = ("begin_mask", "end_mask", "shrink_axis_mask")
_BY_WORD = """
    AddV2 Cast Equal FloorMod Greater GreaterEqual Identity Less LessEqual LogicalAnd LogicalNot
    LogicalOr LookupTableFindV2 Maximum Minimum Mul NotEqual SelectV2 StaticRegexReplace
    StringLength StringLower StringStrip StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper Sub
"""


def split_texts(op: Operation) -> Split:
    """StringSplitV2: of a replica's own texts."""
    texts = op.of_rows()
    # A function that splits texts may be called several times: each call has words of its own.
    words = texts._replace(kind=Kind.WORDS, source=op.node)
    return op.split([words._replace(role=role) for role in ("places", "words", "shape")], texts)


def _by_word(op: Operation) -> Split:
    """Each result is computed of a word, and of what all words have in common."""
    first = next(one for one in op.raw if one.kind is Kind.WORDS)
    # A replica counts its own texts from 0.
    if first.role != "words" or any(
        one != first and (one != SAME or op.rank(place)) for place, one in enumerate(op.values)
    ):
        raise NotByPartError("words beside others, or their places")
    return op.split(first, *op.values)


def _slice(op: Operation) -> Split:
    """StridedSlice: the text of each word, or the number of texts."""
    words = op.raw[0]
    masks = map(op.attribute, _MASKS)
    part = _SLICES.get((words.role, tuple(op.constant(1)), *masks))
    if not part or (op.constant(3) != 1).any():
        raise NotByPartError("some of the words, or in another order")
    return op.split(words._replace(role=part), words)


def _table(op: Operation) -> Split:
    """RaggedTensorToTensor, with a fixed number of columns."""
    words = op.raw[1]
    sizes = np.ravel(op.constant(0)).tolist()  # of unknown sizes, there may be one for all
    if (
        words.role != "words"
        or len(sizes) != 2
        or not sizes[0] < 0 <= sizes[1]
        or op.raw[3:] != [words._replace(role=role) for role in ("count", "texts")]
        or op.attribute("row_partition_types") != [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]
    ):
        raise NotByPartError("words in another table")
    return op.split(rows(outer=words.outer, inner=words.inner), *op.values)


OF_WORDS: Rules = by_kind(
    {
        _BY_WORD: _by_word,
        "RaggedTensorToTensor": _table,
        "StridedSlice": _slice,
    }
)
