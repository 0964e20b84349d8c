"""Datasets whose rows are divided among the workers before their maps."""

from __future__ import annotations

import functools
import operator
import queue
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from keras_marks import KERAS_3
from local_run import captured, in_step

from slurm_resolver.tf.keras.division import UndividedError, divide, share_out
from slurm_resolver.tf.keras.iterators import make_iterator
from slurm_resolver.tf.keras.sharing import Sharing

ROWS = tf.data.Dataset.range(11)


def table() -> Any:
    numbers = tf.range(11)
    words = tf.lookup.KeyValueTensorInitializer(tf.cast(numbers, tf.int64), numbers)
    return tf.lookup.StaticHashTable(words, 0)


WORDS = table()
OTHER_WORDS = table()
GENERATED = tf.data.Dataset.from_generator(
    lambda: range(7),
    output_signature=ROWS.element_spec,
)
DRAWN = tf.random.Generator.from_seed(1)

# Each worker makes its own rows of these.
DIVIDED = """
ROWS.map(double).batch(4)
ROWS.map(double).batch(8)
ROWS.filter(lambda x: x > -1).map(double).batch(8)
ROWS.filter(lambda x: x > 1).map(double).batch(2).prefetch(1)
ROWS.map(double, num_parallel_calls=2, deterministic=False).batch(5, drop_remainder=True)
ROWS.shuffle(7, seed=3).map(double).map(named).batch(4, num_parallel_calls=2)
ROWS.map(double).batch(4).map(lambda x: tf.one_hot(x, 30)).map(named).take(2)
ROWS.map(double).batch(4).map(lambda x: x + first_of([1, 5]))
ROWS.map(double).batch(4, drop_remainder=True).map(lambda x: tf.one_hot(x, 30)).map(named)
ROWS.map(double).batch(4).map(lambda x: tf.reshape(x, [tf.shape(x)[0], 1]))
ROWS.map(double).batch(4).repeat(2).skip(1)
ROWS.map(lambda x: Pair(x, -x)).map(lambda pair: Pair(*pair[::-1])).batch(4)
tf.data.Dataset.from_tensor_slices(Pair([1, 2, 3], [4, 5, 6])).map(lambda p: p.second).batch(2)
tf.data.Dataset.zip((ROWS, ROWS.map(double))).map(lambda a, b: (a, {"b": b})).batch(4)
ROWS.map(lambda x: tf.numpy_function(np.square, [x], tf.int64)).batch(4)
ROWS.map(lambda x: tf.RaggedTensor.from_tensor([[x, x]])[:, : x % 2]).batch(4)
ROWS.map(lambda x: tf.sparse.from_dense([0, x])).batch(4)
ROWS.map(WORDS.lookup).batch(4)
GENERATED.map(double).batch(3)
ROWS.cache().map(double).batch(4).with_options(OPTIONS)
ROWS.map(lambda x: tf.random.stateless_uniform([2], (x, 1))).batch(4)
ROWS.map(lambda x: tf.cond(x > 3, lambda: x, lambda: -x)).batch(4)
"""

# Each worker reads all rows of these.
UNDIVIDED = """
ROWS.batch(4)                                                 | no map directly precedes
ROWS.map(double).filter(lambda x: x > 2).batch(4)             | no map directly precedes
ROWS.map(double).cache().batch(4)                             | no map directly precedes
ROWS.map(double).padded_batch(4)                              | do not come from batch(n)
ROWS.map(double).batch(4).map(lambda x: x - tf.reduce_max(x)) | each row by itself
ROWS.map(double).batch(4).map(lambda x: x[:2])                | each row by itself
ROWS.map(double).batch(4, True).map(lambda x: x // x.shape[0]) | traced again for a part
ROWS.map(double).batch(4, True).map(lambda x: 2 * x if x.shape[0] else x) | as a constant
ROWS.map(double).batch(4, True).map(lambda x: by_length(x))   | as a constant
ROWS.map(double).batch(4).map(lambda x: x // len_of(x))       | each row by itself
ROWS.map(double).batch(4).map(lambda x: tf.range(len_of(x)))  | each row by itself
ROWS.map(double).batch(4).map(lambda x: (x, tf.constant([1, 5]))) | each row by itself
ROWS.map(double).batch(4).map(lambda x: tf.ones([len_of(x)] * 2)) | each row by itself
ROWS.map(lambda x: tf.random.uniform([], seed=1)).batch(4)    | has a seed (RandomUniform)
ROWS.map(lambda x: DRAWN.uniform([])).batch(4)                | has a seed (RngReadAndSkip)
ROWS.map(tf.range).map(tf.reduce_sum).batch(2).unbatch()      | do not come from batch(n)
ROWS.map(tf.range).batch(2).unbatch().map(tf.size).batch(2)   | no fixed shape
"""

OPTIONS = tf.data.Options()
OPTIONS.deterministic = True


class Pair(NamedTuple):
    first: Any
    second: Any


def double(x: Any) -> Any:
    return 2 * x


def first_of(numbers: Any) -> Any:
    """Returns the first number, through an array whose size is known only when it runs."""
    distinct, _ = tf.unique(tf.constant(numbers, tf.int64))
    return tf.TensorArray(tf.int64, 0, True).unstack(distinct).read(0)


def len_of(x: Any) -> Any:
    return tf.shape(x, tf.int64)[0]


@tf.function  # type: ignore[untyped-decorator]
def by_length(x: Any) -> Any:
    return x // (x.shape[0] or len_of(x))


def named(x: Any) -> Any:
    return {"x": x, "y": x + 1}


def dense(batch: Any) -> list[Any]:
    """Returns the tensors of a batch as arrays with a row for each of its rows."""
    found = []
    for value in tf.nest.flatten(batch):
        if isinstance(value, tf.RaggedTensor):
            value = value.to_tensor(shape=[None, 1, 2])
        elif isinstance(value, tf.SparseTensor):
            value = tf.sparse.to_dense(value)
        found.append(value.numpy())
    return found


def shares_of(dataset: Any, sharing: Sharing) -> list[Any]:
    shares, _ = divide(dataset, sharing)
    return list(shares)


def lines(table: str) -> list[str]:
    return table.strip().splitlines()


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("pipeline", lines(DIVIDED))
def test_the_workers_rows_are_those_of_one_process(pipeline: str, workers: int) -> None:
    whole = [dense(batch) for batch in eval(pipeline)]
    shares = [shares_of(eval(pipeline), Sharing(k, 1, workers)) for k in range(workers)]
    assert {len(of_worker) for of_worker in shares} == {len(whole)}
    for number, batch in enumerate(whole):
        for rank, share in enumerate(of_worker[number] for of_worker in shares):
            assert share.rows.shape == (len(batch[0]), 0)
            own = slice(rank, None, workers) if len(batch[0]) >= workers else slice(None)
            for expected, found in zip(batch, dense(share.batch)):
                np.testing.assert_array_equal(
                    found,
                    expected[own],
                )


def test_several_replicas_of_a_worker_have_their_rows_in_turn() -> None:
    (share,) = shares_of(
        tf.data.Dataset.range(6).map(double).batch(9),
        Sharing(1, 2, 3),
    )
    assert share.batch.numpy().tolist() == [2, 4, 8, 10]


@pytest.mark.parametrize("line", lines(UNDIVIDED))
def test_what_is_not_known_to_be_right_is_not_divided(line: str) -> None:
    pipeline, _, reason = line.rpartition(" | ")
    with pytest.raises(
        UndividedError,
        match=re.escape(reason.strip()),
    ):
        divide(
            eval(pipeline),
            Sharing(0, 1, 2),
        )


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("factor", 3),
        ("factor", None),
        ("table", OTHER_WORDS),
        ("axis", 0),
        ("positive", tf.abs),
        ("column", "b"),
    ],
)
def test_a_map_that_would_be_another_one_now_is_not_divided(name: str, now: Any) -> None:
    """Its function is traced again, and sees what Python has now."""
    python = {"factor": 2, "table": WORDS, "axis": -1, "positive": tf.nn.relu, "column": "a"}

    def look_up(x: Any) -> Any:
        np.random.random()  # one process draws it once
        x = {"a": x + 1, "b": x - 1}[python["column"]]
        found = python["factor"] * python["table"].lookup(x)
        found = tf.cond(x > 3, lambda: python["positive"](-found), lambda: found)
        return tf.one_hot([found, found], 30, axis=python["axis"])

    pipeline = ROWS.map(look_up).batch(4)
    state = repr(np.random.get_state())
    divide(pipeline, Sharing(0, 1, 2))
    assert repr(np.random.get_state()) == state
    python[name] = now
    with pytest.raises(UndividedError, match=r"another one now|cannot be traced again"):
        divide(pipeline, Sharing(0, 1, 2))


@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
def test_a_map_calls_the_python_functions_that_it_was_made_with(call: Any) -> None:
    factor = 2
    pipeline = ROWS.map(
        lambda x: tf.ensure_shape(
            call(functools.partial(operator.mul, factor), [x], x.dtype),
            [],
        )
    )
    pipeline = pipeline.batch(4)
    factor = 3
    share, *_ = shares_of(pipeline, Sharing(1, 1, 2))
    assert share.batch.numpy().tolist() == [2, 6]


def test_files_may_be_in_another_folder() -> None:
    """The digest compares the names of files, and the ends of records."""
    digests = []
    for names in (["/a/1.jpg", "/a/2.jpg"], ["/b/c/1.jpg", "/b/c/2.jpg"], ["/a/2.jpg", "/a/1.jpg"]):
        pipeline = tf.data.Dataset.from_tensor_slices(names).map(tf.strings.length).batch(2)
        (share,) = shares_of(pipeline, Sharing(0, 1, 2))
        digests.append(share.digest.numpy().tolist())
    assert digests[0] == digests[1] != digests[2]


def test_a_random_map_without_a_seed_draws_for_each_worker() -> None:
    tf.random.set_seed(None)  # of another test
    pipeline = tf.data.Dataset.range(64).map(lambda x: tf.random.uniform([])).batch(64)
    drawn = [shares_of(pipeline, Sharing(k, 1, 2))[0].batch.numpy() for k in range(2)]
    assert (drawn[0] != drawn[1]).any()


def test_no_worker_waits_for_the_end_of_an_iterator() -> None:
    """TensorFlow may need as long as the iterator has existed."""
    ended: queue.Queue[threading.Thread] = queue.Queue()
    iterator = make_iterator(lambda data: data, ROWS)
    weakref.finalize(
        iterator._iterator_resource,
        lambda: ended.put(threading.current_thread()),
    )
    assert next(iterator) == 0
    del iterator
    assert ended.get(timeout=60) is not threading.current_thread()


READ_AHEAD = """
import time
import slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
import keras
import numpy as np
def generate():
    while True:
        time.sleep(0.2)
        yield np.ones((4, 2)), np.ones((4, 1))
class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs):
        if batch:
            %s
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(generate(), steps_per_epoch=3, verbose=0, callbacks=[End()])
"""


@KERAS_3
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("pass", 0),
        ("self.model.stop_training = True", 0),
        ("raise ValueError", 1),
    ],
)
def test_a_program_ends_while_a_generator_is_read_ahead(ending: str, status: int) -> None:
    program = [sys.executable, "-W", "ignore", "-c", READ_AHEAD % ending]
    captured(in_step("-n 2", *program), status=status, timeout=200)


def test_of_a_generator_every_worker_reads_one_batch_ahead() -> None:
    """The next reader of the generator begins behind it."""
    read: queue.SimpleQueue[int] = queue.SimpleQueue()

    def numbers() -> Iterator[int]:
        for number in range(99):
            read.put(number)
            yield number

    generated = tf.data.Dataset.from_generator(numbers, output_signature=ROWS.element_spec)
    data = share_out(generated.batch(1).prefetch(4), Sharing(0, 1, 2), in_memory=True)
    assert data
    iterator = iter(data)
    for number in range(9):
        next(iterator)
        assert read.get(timeout=60) == number
    assert read.get(timeout=60) == 9
    with pytest.raises(queue.Empty):
        read.get(timeout=0.2)
