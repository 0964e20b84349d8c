"""Each entry of the table: its operation alone, on random parts, against the whole.

All operations of a test are in one graph, each with a result of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from simulated_replicas import SimulatedReplicas

from slurm_resolver.tf.partition.emission import Plan, Split
from slurm_resolver.tf.partition.step import plan_step
from slurm_resolver.tf.partition.table import BY_ENTRY, TABLE
from slurm_resolver.tf.partition.values import SAME, PlanError, Value

raw = tf.raw_ops

REPLICAS = 2
ROWS = (5, 2)  # unequal parts, and one row each
# A replica has no rows. TensorFlow's kernels for windows fail, or abort, without rows.
NO_ROWS = 1

WEIGHTS = tf.constant(np.linspace(-1, 1, 24).reshape(6, 4), tf.float32)
KERNEL = tf.constant(np.linspace(-1, 1, 54).reshape(3, 3, 3, 2), tf.float32)
GROUPED = tf.constant(np.linspace(-1, 1, 27).reshape(3, 3, 1, 3), tf.float64)
KERNEL_3D = tf.constant(np.linspace(-1, 1, 16).reshape(2, 2, 2, 2, 1), tf.float32)
VARIABLE = tf.Variable(np.linspace(-1, 1, 12).reshape(4, 3), dtype=tf.float32)
KEYS = tf.constant(["a", "b"], tf.string)
LOOKUP = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.range(4), tf.range(4) * 10),
    default_value=-1,
)
PAD = [[0, 0], [1, 2], [0, 0]]

Expression = Callable[[Mapping[str, Any]], Any]


def batch(rows: int) -> dict[str, Any]:
    """Returns random inputs, whose first axis is that of the rows."""
    random = np.random.default_rng(rows)
    return {
        "x": random.normal(size=(rows, 4, 6)).astype("float32"),
        "y": random.uniform(0.1, 0.9, size=(rows, 4, 6)).astype("float32"),
        "image": random.normal(size=(rows, 8, 8, 3)).astype("float32"),
        "small": random.normal(size=(rows, 4, 4, 4, 2)).astype("float32"),
        "index": random.integers(0, 4, rows).astype("int32"),
        "whole": random.integers(1, 9, (rows, 3)).astype("int32"),
    }


def trace(expressions: Mapping[str, Expression], names: Iterable[str]) -> Any:
    """Returns a traced function of these inputs, with a result for each expression."""

    def compute(inputs: Mapping[str, Any]) -> list[Any]:
        return [expression(inputs) for expression in expressions.values()]

    given = batch(3)
    specs = {
        name: tf.TensorSpec([None, *given[name].shape[1:]], given[name].dtype) for name in names
    }
    return tf.function(compute, autograph=False).get_concrete_function(specs)


def check_results(
    expressions: Mapping[str, Expression],
    names: Iterable[str],
    sizes: Iterable[int] = ROWS,
) -> Plan:
    """Asserts that each expression equals one process, by part or not; returns the plan."""
    names = sorted(names)
    traced = trace(expressions, names)
    plan = plan_step(traced)
    replicas = SimulatedReplicas(traced, plan, REPLICAS)
    for rows in sizes:
        given = batch(rows)
        expected = traced({name: tf.constant(given[name]) for name in names})
        for outputs in replicas([given[name] for name in names]):
            for name, one, other in zip(expressions, outputs, expected):
                np.testing.assert_allclose(one, other, 1e-5, 1e-5, err_msg=f"{name} of {rows} rows")
    return plan


def check(
    expressions: Mapping[str, Expression],
    names: Iterable[str],
    sizes: Iterable[int] = ROWS,
) -> Plan:
    """Asserts that each expression is computed by part, and equals one process."""
    plan = check_results(expressions, names, sizes)
    assert len(plan.levels) == 1
    parts: dict[int, Value] = {}
    for step in plan.steps:
        if isinstance(step, Split):
            assert step.reason is None, step.node.operation.name
            parts |= zip(step.node.outputs, step.results)
    results = dict(zip(expressions, plan.flat.outputs))
    assert [name for name, number in results.items() if parts[number] == SAME] == []
    return plan


def types(plan: Plan) -> set[str]:
    return {node.operation.type for node in plan.flat.nodes}


# --- Operations entry by entry -------------------------------------------------------------------

_TYPES = (tf.float32, tf.int32, tf.bool, tf.complex64, tf.uint8)
_MORE: dict[str, dict[str, Any]] = {
    "AddN": {},
    "Bitcast": {"type": tf.int32},
    "Cast": {"DstT": tf.float64},
    "CheckNumerics": {"message": ""},
}


def inputs_of(name: str) -> list[str]:
    """Returns the names of the inputs of an operation."""
    parameters = inspect.signature(getattr(raw, name)).parameters.values()
    of_attributes = {"type", "DstT", "message", "name"}
    return [
        one.name
        for one in parameters
        if one.default is inspect.Parameter.empty and one.name not in of_attributes
    ]


def apply(name: str, first: Any, second: Any) -> Any:
    """Returns an operation of a batch, and of what stands beside it if it has two inputs."""
    arguments = inputs_of(name)
    operation = getattr(raw, name)
    if name == "AddN":
        return operation(inputs=[first, first])
    given = [first, second, first][: len(arguments)]
    if name == "SelectV2":
        given = [first > 0.5, first, second]
    for dtype in _TYPES:
        try:
            cast = [one if one.dtype == tf.bool else tf.cast(one, dtype) for one in given]
            return operation(**dict(zip(arguments, cast)), **_MORE.get(name, {}))
        except (TypeError, ValueError, tf.errors.InvalidArgumentError):
            continue
    raise AssertionError(f"{name} takes none of {_TYPES}")


@pytest.mark.parametrize(
    "rows_last",
    [False, pytest.param(True, marks=pytest.mark.nightly)],
)
def test_each_entry_is_computed_of_the_entries_at_its_place(rows_last: bool) -> None:
    def expression(name: str, second: str) -> Expression:
        def compute(inputs: Mapping[str, Any]) -> Any:
            first = inputs["y"]
            given = {
                "rows": first + 0.05,
                "one": first[:1] * 0.0 + tf.constant(0.5, shape=(1, 4, 6)),
            }
            other = given["rows"] if second == "rows" else tf.constant(0.5, shape=(1, 4, 6))
            if rows_last:
                first = tf.transpose(first)
                other = tf.transpose(other)
            return apply(name, first, other)

        return compute

    broadcasting = {"Add", "AddV2", "Maximum", "Mul", "RealDiv", "SelectV2", "Sub", "Xlogy"}
    found = {name: expression(name, "rows") for name in BY_ENTRY.split()}
    found |= {f"{name} beside one": expression(name, "one") for name in broadcasting}
    plan = check(found, ["y"], [*ROWS, NO_ROWS])
    assert set(BY_ENTRY.split()) <= types(plan)


# --- All others ----------------------------------------------------------------------------------

# An expression of x, y, image, small, index and whole; `last` moves the rows to the last axis.
EXPRESSIONS = """
tf.reduce_sum(x)
tf.reduce_sum(x, [0, 2], keepdims=True)
tf.reduce_sum(x, 1)
tf.reduce_sum(last(x), -1)
tf.reduce_sum(last(x), 0)
tf.reduce_mean(x)
tf.reduce_mean(x, 0)
tf.reduce_mean(last(x), [0, 2])
tf.reduce_max(x, 1)
tf.reduce_min(last(x), 0)
tf.reduce_prod(x, [1, 2])
tf.reduce_all(x > 0, 2)
tf.reduce_any(x > 0, [1])
tf.argmax(x, 2)
tf.argmin(last(x), 0)
tf.math.reduce_euclidean_norm(x, 1)
tf.nn.l2_loss(x)
tf.matmul(x[:, 0], WEIGHTS)
tf.matmul(WEIGHTS, last(x[:, 0]), transpose_a=True)
tf.matmul(x[:, 0], y[:, 0], transpose_a=True)
tf.matmul(last(x[:, 0]), y[:, 0])
tf.matmul(x, y, transpose_b=True)
raw.BatchMatMul(x=x, y=tf.transpose(y, [0, 2, 1]))
raw.BatchMatMulV3(x=x, y=tf.transpose(y, [0, 2, 1]), Tout=tf.float32)
tf.einsum("nab,bc->nac", x, WEIGHTS)
tf.einsum("nab,nab->b", x, y)
tf.einsum("...ab,...cb->...ac", x, y)
tf.einsum("t...i->t...", tf.transpose(x, [1, 0, 2]))
tf.einsum("bac,nab->nc", tf.reshape(tf.range(48.0), [6, 4, 2]), x)
tf.nn.conv2d(image, KERNEL, 2, "SAME")
tf.nn.conv2d(image, KERNEL, 1, "VALID")
gradient(lambda t: tf.nn.conv2d(t, KERNEL, 1, "SAME"), image)
gradient_of(lambda w: tf.nn.conv2d(image, w, 1, "SAME"), KERNEL)
tf.nn.conv2d_transpose(tf.nn.conv2d(image, KERNEL, 2, "SAME"), KERNEL, [8, 8], 2)
gradient(lambda t: tf.nn.depthwise_conv2d(t, KERNEL, STRIDES, "SAME"), image)
gradient_of(lambda w: tf.nn.depthwise_conv2d(image, w, STRIDES, "SAME"), KERNEL)
gradient(lambda t: tf.nn.conv3d(t, KERNEL_3D, STRIDES_3D, "SAME"), small)
gradient_of(lambda w: tf.nn.conv3d(small, w, STRIDES_3D, "SAME"), KERNEL_3D)
tf.nn.max_pool2d(image, 2, 2, "SAME")
tf.nn.avg_pool2d(image, 2, 2, "VALID")
tf.nn.max_pool3d(small, 2, 2, "SAME")
tf.nn.avg_pool3d(small, 2, 2, "SAME")
gradient(lambda t: tf.nn.max_pool2d(t, 2, 2, "SAME"), image)
gradient(lambda t: tf.nn.avg_pool2d(t, 2, 2, "VALID"), image)
gradient(lambda t: tf.nn.max_pool3d(t, 2, 2, "SAME"), small)
gradient(lambda t: tf.nn.avg_pool3d(t, 2, 2, "SAME"), small)
gradient(lambda t: gradient(lambda u: tf.square(tf.nn.max_pool2d(u, 2, 2, "SAME")), t), image)
tf.nn.local_response_normalization(image)
tf.image.resize(image, [4, 4], "area")
tf.image.resize(image, [4, 4], "bicubic")
tf.image.resize(image, [5, 5], "bilinear")
tf.image.resize(image, [4, 4], "nearest")
gradient(lambda t: tf.image.resize(t, [5, 5], "bilinear"), image)
tf.nn.softmax_cross_entropy_with_logits(y[:, 0], x[:, 0])
tf.nn.sparse_softmax_cross_entropy_with_logits(index, x[:, 0])
tf.math.in_top_k(index, x[:, 0], 2)
tf.nn.bias_add(x, tf.range(6.0))
gradient_of_bias(x)
tf.nn.bias_add(images_first(image), [1.0, 2.0, 3.0], "NCHW")
raw.BiasAddGrad(out_backprop=images_first(image), data_format="NCHW")
raw.Select(condition=x > 0.0, x=x, y=y)
raw.Select(condition=index > 1, x=x, y=y)
tf.nn.softmax(x)
tf.nn.log_softmax(x)
tf.math.top_k(x, 2)[0]
tf.math.top_k(x, 2)[1]
tf.abs(tf.signal.rfft(x))
tf.signal.irfft(tf.signal.rfft(x))
tf.abs(tf.signal.fft(tf.cast(x, tf.complex64)))
tf.math.real(tf.signal.ifft(tf.cast(x, tf.complex64)))
tf.abs(tf.signal.fft2d(tf.cast(x, tf.complex64)))
tf.abs(tf.signal.ifft2d(tf.cast(x, tf.complex64)))
tf.linalg.band_part(x, 1, 0)
tf.cumsum(x, 1)
tf.cumsum(last(x), 0)
tf.math.cumprod(x, 2)
tf.math.cumulative_logsumexp(x, 1)
tf.reverse(x, [1])
tf.reverse_sequence(x, index, seq_axis=1)
tf.reverse_sequence(last(x), whole[:, 0] % 5, seq_axis=1, batch_axis=2)
tf.reverse_sequence(last(x), [0, 1, 2, 3, 4, 2], seq_axis=1, batch_axis=0)
tf.roll(x, 1, 2)
tf.one_hot(index, 4)
tf.one_hot(index, 4, axis=0)
tf.broadcast_to(x[:, None], [tf.shape(x)[0], 3, 4, 6])
tf.fill([tf.shape(x)[0], 2], tf.reduce_sum(WEIGHTS)) * x[:, 0, :2]
tf.broadcast_to(WEIGHTS[0], [tf.shape(x)[0], 4]) + x[:, :, 0]
tf.concat([x, y], 1)
tf.concat([x, y], 0)
tf.concat([last(x), last(y)], -1)
tf.expand_dims(x, 0)
tf.expand_dims(x, 2)
tf.gather(WEIGHTS, index)
tf.gather(x, [0, 2], axis=1)
tf.gather(x, [[0, 2], [1, 1]], axis=2)
tf.gather(last(x), [0, 2])
tf.gather(x, whole % 4, axis=1, batch_dims=1)
tf.gather(VARIABLE, index)
LOOKUP.lookup(index)
LOOKUP.lookup(tf.stack([index, index + 1]))
tf.gather(VARIABLE, tf.stack([index, index]))
tf.identity_n([x, y * 2.0])[1]
tf.stack([x, y])
tf.stack([x, y], 1)
tf.stack([last(x), last(y)], -1)
tf.pad(x, PAD)
tf.pad(x, PAD, "REFLECT")
tf.pad(x, PAD, constant_values=2.0)
tf.reshape(x, [-1])
tf.reshape(x, [-1, 24])
tf.reshape(x, [tf.shape(x)[0], 2, 12])
tf.reshape(tf.reshape(x, [-1, 6]), [-1, 4, 6])
tf.reshape(last(x), [24, -1])
tf.scatter_nd(index[:, None], x, [4, 4, 6])
tf.tensor_scatter_nd_add(tf.ones([4, 6]), index[:, None], x[:, 0])
tf.math.unsorted_segment_sum(x, index, 4)
x * tf.cast(tf.shape(x)[0], tf.float32)
x * tf.cast(tf.size(x), tf.float32)
x * tf.cast(raw.ShapeN(input=[x, y])[0][0], tf.float32)
raw.Slice(input=x, begin=[0, 1, 2], size=[-1, 2, 3])
raw.Slice(input=tf.concat([x, y], 0), begin=tf.stack([tf.shape(x)[0], 0, 0]), size=tf.shape(x))
tf.concat([x, y], 0)[: tf.shape(x)[0]]
tf.concat([x, y, x], 0)[tf.shape(x)[0] :]
tf.concat([x, y], 0)[-tf.shape(x)[0] :]
x[:, 1:3, ::2]
x[..., 1]
x[:, None, 0]
x[:, tf.newaxis, ..., :3]
last(x)[1, 1:3]
tf.split(x, 2, 1)[1]
tf.split(tf.concat([x, y], 0), 2)[1]
tf.split(x, [1, 5], 2)[1]
tf.ensure_shape(x, [None, 4, None])
hashed(words(tf.concat([index, index + 1], 0))).to_tensor(shape=[None, 3])
tf.split(tf.concat([x, y, x], 0), tf.shape(x)[0] * [1, 2])[1]
tf.squeeze(x[:, :1], 1)
gradient(lambda t: t[:, 1:3, ::2], x)
gradient(lambda t: t[:, None, 0], x)
gradient(lambda t: tf.concat([t, t], 0)[: tf.shape(t)[0]], x)
tf.tile(x, [1, 2, 1])
tf.tile(x, [2, 1, 1])
tf.transpose(x, [1, 0, 2])
tf.transpose(last(x))
tf.unstack(x, axis=1)[2]
tf.unstack(last(x))[2]
raw.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0])
hashed(tf.strings.as_string(whole))
hashed(tf.strings.lower(tf.strings.as_string(whole)))
hashed(tf.strings.upper(tf.strings.as_string(whole)))
hashed(tf.strings.strip(tf.strings.as_string(whole)))
hashed(tf.strings.regex_replace(tf.strings.as_string(whole), "1", "2"))
hashed(tf.strings.unicode_transcode(tf.strings.as_string(whole), "UTF-8", "UTF-16-BE"))
hashed(tf.strings.join([tf.strings.as_string(whole), "a", tf.strings.as_string(whole + 1)]))
hashed(tf.strings.substr(tf.strings.as_string(whole * 9), whole % 2, whole))
tf.strings.to_hash_bucket_strong(tf.strings.as_string(whole), 1000, [1, 2])
tf.compat.v1.string_to_hash_bucket(tf.strings.as_string(whole), 1000)
tf.strings.regex_full_match(tf.strings.as_string(whole), "[1-5].*")
tf.strings.length(tf.strings.as_string(whole))
hashed(words(index)).to_tensor(1, shape=[None, 3])
tf.strings.length(tf.strings.upper(words(index))).to_tensor(shape=[None, 2])
hashed(words(index).to_tensor("-", shape=[None, 3]))
tf.strings.to_number(tf.strings.as_string(whole))
tf.gather(x, tf.range(tf.shape(x)[0]))
gradient(lambda t: tf.gather(t, tf.range(tf.shape(t)[0])), x)
tf.gather_nd(WEIGHTS, whole[:, :2] % 4)
tf.gather_nd(last(x), [[0, 1], [5, 2]])
tf.gather_nd(x, each_row(index))
tf.gather_nd(x, tf.concat([tf.range(tf.shape(x)[0])[:, None], whole[:, :2] % 4], 1))
gradient(lambda t: tf.gather_nd(t, each_row(index)), x)
gradient(lambda t: tf.gather_nd(last(t), [[0, 1], [5, 2]]), x)
tf.scatter_nd(each_row(index), x[:, 0], tf.shape(x))
tf.tensor_scatter_nd_update(x, each_row(index), y[:, 0])
tf.tensor_scatter_nd_add(last(x), [[0], [3]], last(y)[:2])
tf.tensor_scatter_nd_sub(WEIGHTS, index[:, None], y[:, 0, :4])
gradient(lambda t: tf.gather(t, [[0, 2], [1, 1]], axis=1), x)
tf.math.unsorted_segment_sum(last(x), [0, 2, 0, 1, 1, 1], 3)
tf.sparse.sparse_dense_matmul(tf.sparse.eye(6), last(x[:, 0]))
tf.sparse.sparse_dense_matmul(tf.sparse.eye(6), x[:, 0], adjoint_b=True)
tf.image.adjust_contrast(image, 2.0)
tf.image.adjust_hue(image, 0.1)
tf.image.adjust_saturation(image, 2.0)
tf.image.extract_patches(image, [1, 2, 2, 1], [1, 2, 2, 1], STRIDES, "VALID")
shifted(image)
tf.nn.space_to_depth(image, 2)
tf.nn.depth_to_space(tf.nn.space_to_depth(image, 2), 2)
tf.abs(tf.signal.rfft2d(x))
tf.signal.irfft2d(tf.signal.rfft2d(x))
tf.linalg.cholesky(positive(x))
tf.linalg.det(positive(x))
tf.linalg.slogdet(positive(x))[1]
tf.linalg.inv(positive(x))
tf.nn.convolution(image, KERNEL, padding="SAME", dilations=2)
tf.nn.convolution(image[:, :, 0], KERNEL[0], padding="VALID", dilations=3)
gradient(lambda t: tf.nn.convolution(t, KERNEL, padding="SAME", dilations=[2, 3]), image)
gradient_of(lambda w: tf.nn.convolution(image, w, padding="SAME", dilations=2), KERNEL)
tf.space_to_batch(tf.concat([image, image + 1.0], 0), [2, 4], [[0, 0], [1, 3]])
tf.batch_to_space(tf.tile(image, [4, 1, 1, 1]), [2, 2], [[0, 1], [0, 0]])
compiled_convolution(image)
gradient(compiled_convolution, image)
gradient_of(lambda w: tf.map_fn(lambda row: compiled_convolution(row[None], w), image), GROUPED)
tf.nn.dilation2d(image, KERNEL[..., 0], STRIDES, "SAME", "NHWC", STRIDES)
gradient(lambda t: tf.nn.dilation2d(t, KERNEL[..., 0], STRIDES, "SAME", "NHWC", STRIDES), image)
gradient_of(lambda w: tf.nn.dilation2d(image, w, STRIDES, "SAME", "NHWC", STRIDES), KERNEL[..., 0])
gradient(lambda t: gradient(lambda u: tf.square(tf.nn.max_pool3d(u, 2, 2, "SAME")), t), small)
gradient(tf.nn.local_response_normalization, image)
gradient(lambda t: tf.image.resize(t, [4, 4], "bicubic"), image)
gradient(lambda t: tf.image.resize(t, [4, 4], "nearest"), image)
tf.image.resize(image, [5, 5], "lanczos3", antialias=True)
gradient(lambda t: tf.image.resize(t, [5, 5], "lanczos3", antialias=True), image)
tf.image.draw_bounding_boxes(image, tf.abs(x[:, :3, :4]) / 9.0, [[1.0, 2.0, 3.0]])
tf.image.rgb_to_hsv(tf.abs(image))
tf.image.hsv_to_rgb(tf.abs(image) / 9.0)
tf.extract_volume_patches(small, [1, 2, 2, 1, 1], STRIDES_3D, "SAME")
tf.searchsorted([-1.0, 0.0, 1.0], x[:, 0, 0])
tf.searchsorted(tf.sort(x[:, 0]), y[:, 0], "right")
tf.linalg.cross(x[..., :3], y[..., :3])
raw.NthElement(input=x, n=2)
tf.abs(tf.signal.fft3d(tf.cast(small, tf.complex64)))
tf.abs(tf.signal.ifft3d(tf.cast(small, tf.complex64)))
tf.abs(tf.signal.rfft3d(small))
tf.signal.irfft3d(tf.signal.rfft3d(small))
tf.linalg.solve(positive(x), x)
tf.linalg.lstsq(positive(x), x, fast=False)
tf.linalg.triangular_solve(tf.linalg.cholesky(positive(x)), x)
tf.linalg.triangular_solve(tf.eye(4)[None], x)
tf.linalg.banded_triangular_solve(2.0 + tf.abs(x[:, :2, :4]), y)
tf.linalg.tridiagonal_matmul(x[:, :3, :4], y, "compact")
tf.linalg.tridiagonal_solve(x[:, :3, :4] + [[0.0], [9.0], [0.0]], y, "compact")
tf.linalg.sqrtm(positive(x))
tf.abs(tf.linalg.logm(tf.cast(positive(x), tf.complex64)))
tf.linalg.qr(x)[1]
tf.linalg.diag(x)
tf.linalg.diag(x[:, 0], k=2)
tf.linalg.diag(x[:, :2], k=(0, 1))
tf.linalg.diag(tf.transpose(x[:, :2], [1, 0, 2]))
tf.linalg.diag_part(x)
tf.linalg.diag_part(x, k=(-1, 1))
tf.linalg.set_diag(x, y[:, :, 0])
tf.linalg.set_diag(x, tf.ones([tf.shape(x)[0], 4]))
gradient(tf.linalg.cholesky, positive(x))
tf.linalg.lu(positive(x))[0]
tf.linalg.lu(positive(x))[1]
raw.CholeskyGrad(l=tf.linalg.cholesky(positive(x)), grad=x[..., :4])
hashed(tf.strings.regex_replace(tf.strings.as_string(whole), tf.constant("1"), "2"))
tf.strings.regex_full_match(tf.strings.as_string(whole), tf.constant("[1-5].*"))
tf.strings.unicode_script(whole * 50)
gradient(lambda t: tf.pad(t, PAD, "REFLECT"), x)
tf.signal.frame(last(last(x)), 4, 2)
tf.map_fn(lambda row: row * tf.reduce_sum(row), x)
tf.map_fn(lambda row: row[0] + tf.cast(row[1], tf.float32), (x, index), fn_output_signature=F)
tf.map_fn(lambda place: WEIGHTS[place % 3], tf.range(tf.shape(x)[0]), fn_output_signature=F)
tf.map_fn(lambda row, count=tf.shape(x)[0]: row / tf.cast(count, F), x)
gradient(lambda t: tf.map_fn(lambda row: row * tf.reduce_sum(row), t), x)
gradient_of(lambda w: tf.map_fn(lambda row: tf.matmul(row, w), x), WEIGHTS)
tf.vectorized_map(lambda row: row * tf.reduce_sum(row), x)
gradient(lambda t: tf.vectorized_map(lambda row: row * tf.reduce_sum(row), t), x)
tf.vectorized_map(lambda row: row[0] + tf.cast(row[1], tf.float32), (x, index))
gradient(tf.recompute_grad(lambda t: tf.tanh(t)), x)
gradient(lambda t: tf.foldl(lambda a, _: tf.gather(a, tf.range(tf.shape(a)[0])), WEIGHTS, t), x)
(raw.Assert(condition=WEIGHTS[0, 0] < 9.0, data=[x]), x)[1]
gradient(lambda t: tf.reshape(t[:, :1, :1] * tf.ones([300_000]), [-1]), x)
"""

F = tf.float32
SHIFT = tf.constant([[1.0, 0.0, 1.5, 0.0, 1.0, -0.5, 0.0, 0.0]])

STRIDES = [1, 1, 1, 1]
STRIDES_3D = [1, 1, 1, 1, 1]


def pairs_of(tensor: Any) -> Any:
    return tf.shape(tensor)[0] * tf.shape(tensor)[0]


def last(tensor: Any) -> Any:
    return tf.transpose(tensor)


def shifted(images: Any) -> Any:
    return raw.ImageProjectiveTransformV3(
        images=images,
        transforms=SHIFT,
        output_shape=[8, 8],
        fill_value=0.0,
        interpolation="BILINEAR",
    )


def each_row(columns: Any) -> Any:
    """Returns the places of one entry of each row."""
    return tf.stack([tf.range(tf.shape(columns)[0]), columns], 1)


def positive(tensor: Any) -> Any:
    """Returns positive definite matrices."""
    return tf.matmul(tensor, tensor, transpose_b=True) + 3 * tf.eye(4)


def gradient(function: Callable[[Any], Any], tensor: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = tf.reduce_sum(tf.square(function(tensor)))
    return tf.convert_to_tensor(tape.gradient(result, tensor))


def gradient_of(function: Callable[[Any], Any], weights: Any) -> Any:
    """Returns a gradient that is a sum over rows, by its inputs with rows alone."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        result = tf.reduce_sum(function(weights))
    return tape.gradient(result, weights)


@tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
def compiled_convolution(images: Any, kernel: Any = GROUPED) -> Any:
    """Returns a convolution of which TensorFlow has no kernel on CPUs."""
    images = tf.cast(images_first(images), tf.float64)
    return tf.cast(tf.nn.conv2d(images, kernel, 1, "VALID", "NCHW"), F)


def images_first(images: Any) -> Any:
    """Returns images whose channels are the second axis."""
    return tf.transpose(images, [0, 3, 1, 2])


def gradient_of_bias(tensor: Any) -> Any:
    return raw.BiasAddGrad(out_backprop=tensor)


def words(numbers: Any) -> Any:
    """Returns one or more words for each number, of which some are empty, as a RaggedTensor."""
    texts = tf.strings.regex_replace(tf.strings.as_string(numbers * 7), "[12]", " a ")
    return tf.strings.split(texts, " ")


def one_function(function: Any, *arguments: Any) -> Any:
    """Returns what the same function returns for both arguments, where their words are equal."""
    called = tf.function(lambda one: function(one).values)
    first, second = map(called, arguments)
    return hashed(function(arguments[0]).with_values(tf.where(first == second, first, second)))


def hashed(texts: Any) -> Any:
    return tf.strings.to_hash_bucket_fast(texts, 1000)


def expression_of(text: str) -> Expression:
    code = compile(text, text, "eval")
    return lambda inputs: eval(code, {**globals(), **inputs})


def test_each_other_operation_is_computed_by_part() -> None:
    lines = EXPRESSIONS.split("\n")[1:-1]
    plan = check({line: expression_of(line) for line in lines}, batch(1))
    # The result of a histogram, a sum of whole numbers, is put together for the function's output.
    # The others need a GPU.
    others = {"CudnnRNNBackpropV3", "CudnnRNNV3", "HistogramFixedWidth"}
    assert set(TABLE) - set(BY_ENTRY.split()) - types(plan) == others


# --- What is not by row -------------------------------------------------------------------------

# What may look as if each row were computed by itself, or as if a size were that of all rows.
NOT_BY_ROW = """
tf.gather(tf.transpose(similarities(x)), tf.range(tf.shape(x)[0]), batch_dims=1)
tf.cast(tf.reduce_sum(tf.cast(whole * 30, tf.uint8)), F)
total_of_rows(x, tf.reduce_max(x) > 100)
1 / tf.reverse(-tf.nn.relu(x), [0])
tf.reduce_sum(tf.exp(tf.pad(x, [[0, tf.maximum(8 - tf.shape(x)[0], 0)], [0, 0], [0, 0]])))
tf.reduce_sum(tf.exp(tf.pad(x, [[0, 8 - tf.shape(x[:8])[0]], [0, 0], [0, 0]])))
tf.reduce_sum(tf.exp(tf.pad(x, [[0, 8 - tf.size(tf.range(tf.shape(x)[0])[:8])], [0, 0], [0, 0]])))
tf.reduce_sum(tf.exp(x[: 2 * tf.shape(x)[0] - 4]))
tf.reduce_sum(tf.exp(tf.concat([x, y], 0)[3 * tf.shape(x)[0] - 8 :]))
tf.reduce_sum(tf.exp(tf.pad(x, [[0, -tf.minimum(tf.shape(x)[0] - 8, 0)], [0, 0], [0, 0]])))
gradient(lambda t: tf.einsum("nn->n", t), similarities(x))
tf.gather(x, tf.cast(tf.cast(tf.range(tf.shape(x)[0]), tf.bool), tf.int32))
tf.reshape(tf.squeeze(x[:, :1, :1]), [-1])
tf.reduce_sum(tf.range(tf.shape(x)[0] ** 2))
tf.linalg.diag_part(similarities(x))
tf.linalg.set_diag(similarities(x), tf.zeros([tf.shape(x)[0]]))
tf.linalg.diag(x[:, 0, 0])
tf.linalg.diag(tf.transpose(x[:, :2, 0]), k=(0, 1))
tf.size(tf.pad(index, [[0, 6 - tf.size(tf.linalg.svd(x[:, 0])[0])]]))
tf.size(tf.pad(index, [[0, 6 - tf.shape(tf.linalg.qr(x[:, 0])[1])[0]]]))
tf.size(tf.pad(index, [[0, 6 - tf.size(tf.linalg.diag_part(x[:, 0]))]]))
tf.size(tf.pad(index, [[0, tf.size(tf.range(0, 9, tf.shape(x)[0])) - 1]]))
tf.size(tf.pad(index, [[0, tf.size(tf.range(9)[:: tf.shape(x)[0]]) - 1]]))
tf.size(tf.pad(index, [[0, tf.cast(tf.cast(tf.shape(x)[0], tf.uint8) * 32, tf.int32)]]))
tf.size(tf.pad(index, [[0, 2 * tf.size(tf.range(0, pairs_of(x), 2)) - pairs_of(x)]]))
tf.vectorized_map(lambda row: tf.map_fn(tf.sin, row), x)
tf.size(tf.dynamic_stitch([tf.range(tf.shape(x)[0]), [5]], [tf.range(tf.shape(x)[0]), [5]]))
tf.ones(tf.shape(tf.linalg.diag_part(tf.zeros([2 * tf.size(index) - 2, tf.size(index) * 2]))))
tf.ones(tf.TensorArray(tf.int32, 3, element_shape=[1]).write(0, tf.shape(index)).read(1))
tf.cast(tf.reduce_sum(tf.cast(x * 0.0 + 20_000.0, tf.float16), 0), F)
raw.Bitcast(input=tf.complex(x, x), type=tf.uint8)
tf.fill(tf.concat([tf.shape(index), tf.boolean_mask([6, 7], [True, False])], 0), 1.0)
"""


def total_of_rows(rows: Any, is_wanted: Any) -> Any:
    """Returns the sum of all rows, or 0."""
    n = tf.shape(rows)[0]
    list_of_rows = tf.TensorArray(F, n).unstack(rows)

    def again(i: Any, is_wanted: Any, total: Any) -> Any:
        return i + 1, is_wanted, total + list_of_rows.read(i)

    state = (0, is_wanted, tf.zeros_like(rows[0]))
    return tf.while_loop(lambda i, goes_on, _: (i < n) & goes_on, again, state)[2]


def similarities(tensor: Any) -> Any:
    """Returns the products of each row and each row."""
    return tf.matmul(tensor[:, 0], tensor[:, 1], transpose_b=True)


# What the words of all rows decide.
OF_ALL_WORDS = """
hashed(words(index)).to_tensor()
hashed(words(index)).to_tensor(shape=[tf.shape(index)[0], 3])
hashed(words(index)[:, ::-1]).to_tensor(shape=[None, 3])
hashed(words(index).with_values(words(index).values[::-1])).to_tensor(shape=[None, 3])
hashed(words(index).with_values(words(index + 1).values)).to_tensor(shape=[None, 3])
tf.minimum(words(index).value_rowids(), 2)
tf.raw_ops.StringSplitV2(input=tf.strings.as_string(index), sep="").indices[::-1, 0]
one_function(words, index, index + 1)
words(index).row_lengths()
tf.size(words(index).values)
hashed(tf.where(tf.shape(index)[0] > 1, words(index).values, "-"))
"""


@pytest.mark.parametrize("text", OF_ALL_WORDS.split("\n")[1:-1])
def test_words_of_all_rows_cannot_be_put_together(text: str) -> None:
    traced = trace({text: expression_of(text)}, ["index"])
    with pytest.raises(PlanError, match="all rows"):
        plan_step(traced)


def test_a_histogram_is_counted_by_part() -> None:
    """TensorFlow's optimizer would fail with a whole tensor of float64 that was put together."""
    text = "tf.histogram_fixed_width(tf.cast(x, tf.float64), [-1.0, 1.0], 5)"
    plan = check_results({text: expression_of(text)}, ["x"], [*ROWS, NO_ROWS])
    assert [step.reason for step in plan.steps if isinstance(step, Split) and step.reason] == []


def test_what_is_not_by_row_equals_one_process() -> None:
    lines = NOT_BY_ROW.split("\n")[1:-1]
    check_results({line: expression_of(line) for line in lines}, batch(1))


def test_another_number_of_a_single_row_is_no_row() -> None:
    """`tf.vectorized_map` has 0 in its place, and `tf.squeeze` removes its axis."""
    places = "tf.where(tf.shape(x)[0] > 1, tf.range(tf.shape(x)[0]), {})"
    text = f"tf.math.unsorted_segment_sum(x, {places}, tf.shape(x)[0])"
    lines = [
        *map(text.format, ("-1", "-whole[0, 0]")),
        "tf.reduce_sum(tf.ones([tf.shape(tf.squeeze(x[:, 0]))[0]]))",
    ]
    check_results({line: expression_of(line) for line in lines}, ["whole", "x"], [1])


# --- Loops over rows -----------------------------------------------------------------------------

# A round of these uses more than its own row, or its number; `o` is the list of the results. The
# last one has another number of rounds.
ROUNDS = """
o.write(i, list_of_rows.read(i) * tf.cast(i, F))
o.write(i, list_of_rows.read(i) * tf.cast(i + 1, F))
o.write(i, list_of_rows.read((i + 1) % n))
o.write(i, list_of_rows.read(n - 1 - i))
o.write(n - 1 - i, list_of_rows.read(i))
o.write(i, list_of_rows.read(i)) while tf.logical_and(i < n, is_large)
"""


def round_of(text: str) -> Expression:
    body, _, test = text.partition(" while ")
    code = compile(body, text, "eval")
    code_of_test = compile(test or "i < n", text, "eval")

    def compute(inputs: Mapping[str, Any]) -> Any:
        x = inputs["x"]
        n = tf.shape(x)[0]
        list_of_rows = tf.TensorArray(F, n).unstack(x)
        is_large = tf.reduce_max(x) > 9.0
        seen = {**globals(), "n": n, "list_of_rows": list_of_rows, "is_large": is_large}

        def again(i: Any, o: Any) -> Any:
            return i + 1, eval(code, {**seen, "i": i, "o": o})

        results = tf.TensorArray(F, n, element_shape=x.shape[1:])
        _, results = tf.while_loop(
            lambda i, _: eval(code_of_test, {**seen, "i": i}), again, (0, results)
        )
        return results.stack()

    return compute


def test_a_loop_over_rows_that_uses_other_rows_equals_one_process() -> None:
    lines = ROUNDS.split("\n")[1:-1]
    check_results({line: round_of(line) for line in lines}, ["x"])


def list_with(*elements: Any) -> Any:
    found = raw.EmptyTensorList(
        element_shape=-1,
        max_num_elements=-1,
        element_dtype=tf.variant,
    )
    for element in elements:
        found = raw.TensorListPushBack(input_handle=found, tensor=element)
    return found


def test_a_loop_that_puts_a_list_into_another_in_each_round_is_not_planned() -> None:
    text = "tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, list_with(a)), (0, list_with()))"
    length = f"raw.TensorListLength(input_handle={text}[1])"
    traced = trace({length: expression_of(length)}, ["x"])
    with pytest.raises(PlanError, match="another value in each round"):
        plan_step(traced)
