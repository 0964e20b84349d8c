"""Keras 3's train, test and predict functions on several workers.

Keras calls such a function for each step, with a list of batches or an iterator. The function
calls the model's `train_step`, `test_step` or `predict_step` in each replica, and returns a result
that is the same in all workers. A step that cannot be split is traced again as a whole step.

Once for each call of `fit`, before the first step, `calls` lets all workers begin together, with
equal models and callbacks, and `division` chooses which rows this worker reads. Then, for each
step, these come one after another in each replica:

    rows_of_replica           takes the replica's rows of the batch, and makes its `Step`
    the model's step          Keras' code, or the user's; in it, `patches` has replaced gradients,
                              losses and metrics by those of all replicas (`gradients`, `losses`,
                              `metrics`), where `split_or_whole` allows that
    Step.add_changes          adds up what all replicas have added to metrics, and compares the
                              workers' batches and learning rates in the same collective: when
                              the model's step asks for results of metrics, or now
    split_or_whole            checks what the step assigns, and puts its results together
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import tensorflow as tf

from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.start.keras_version import keras_takes_batches
from slurm_resolver.tf import private_names
from slurm_resolver.tf.causes import OF_PEERS
from slurm_resolver.tf.data_waits import timed
from slurm_resolver.tf.exchange import STEP, STEP_OF_CALLBACK
from slurm_resolver.tf.keras.configuration import describe_model
from slurm_resolver.tf.keras.differences import REMEDY, compare
from slurm_resolver.tf.keras.files.callback_files import is_in_hook
from slurm_resolver.tf.keras.normalization import statistics_of
from slurm_resolver.tf.keras.outside_graph import call_outside
from slurm_resolver.tf.keras.patches import patch_metrics
from slurm_resolver.tf.keras.replica_step import Step, run_in_replicas
from slurm_resolver.tf.keras.rows_of_replica import part_of_share, step_on_own_data
from slurm_resolver.tf.keras.sharing import (
    TENSORS,
    Share,
    share,
    without_optionals,
)
from slurm_resolver.tf.keras.split_or_whole import (
    ComputeWholeError,
    analysis_of,
    check_assignments,
    put_together,
)
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.keras.weight_comparison import compare_weights
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.progress import noting, reporter

_SEEDS = 2**31 - 1
# TensorFlow's words if the workers add up tensors of different shapes or types.
_MISMATCH = "mismatch in the collective"
_COMPARED = 64  # steps of `train_on_batch` between two comparisons of the weights
# The arguments of `tf.Variable` that Keras and programs give.
_OF_VARIABLES = (
    "initial_value",
    "trainable",
    "name",
    "dtype",
    "constraint",
    "synchronization",
    "aggregation",
    "shape",
)


def compiled(model: Any, function: Method) -> Any:
    """Compiles a function into a graph, unless the model runs eagerly."""
    if model.run_eagerly:
        return function
    function = tf.autograph.experimental.do_not_convert(function)
    return tf.function(function, reduce_retracing=True)


class StepFunction:
    """A model's `train_function`, `test_function` or `predict_function`.

    Layers, optimizers and metrics that are not yet built are built while the step is traced, as in
    one process. Their variables are made outside the graph, and the step is traced once more, so
    that nothing of `build` runs in a step.
    """

    _depends_on_step = False  # whether one gets a value that the step computes
    _own_steps = 0  # of `train_on_batch`

    def __init__(self, model: Any, kind: str) -> None:
        self._model = model
        self._kind = kind
        self._step = getattr(model, f"{kind}_step")
        self._strategy = model.distribute_strategy
        self._made = 0  # variables, while steps were traced
        self.comparison = Comparison(self._strategy, model)
        self._splits = self._strategy.sharing.replicas > 1
        whole = None
        if self._splits and model.run_eagerly:
            whole = ComputeWholeError("it runs eagerly")
        self._make_functions(whole)

    def _make_functions(self, whole: ComputeWholeError | None) -> None:
        """Makes the functions of a step.

        Args:
            whole: why each replica computes whole batches; None if they are split.
        """
        self._whole = whole
        self._traced: set[str] = set()  # which of the functions have been traced
        self._on_batch = compiled(self._model, self.run_step)
        self._on_iterator = compiled(self._model, self._run_steps)

    def __call__(self, data: Any) -> Any:
        """Returns the outputs for a list of batches, or the logs of an iterator's next steps."""
        count = len(data) if isinstance(data, list) else self._model.steps_per_execution
        if self._kind == "train" and not self._strategy.workers.call:
            self._compare_in_own_loop()
        reporter.begin_step(count)
        begins = STEP_OF_CALLBACK if is_in_hook() else STEP
        try:
            with self._strategy.workers.step(begins):
                return self._predict(data) if isinstance(data, list) else self._take_steps(data)
        except tf.errors.OpError as error:
            text = str(error)
            if _MISMATCH in text:
                described = list(describe_model(self._model))
                compare(self._strategy.workers, "in this step", described, described)
                what = text.partition(_MISMATCH)[2].partition(".")[0].strip()
                where = f"the workers compute different steps {reporter.where()}".rstrip()
                raise FitError(f"{where}: {what}. {REMEDY}") from error
            raise
        finally:
            reporter.end_step()

    def _compare_in_own_loop(self) -> None:
        """Compares the workers' models in a loop of `train_on_batch`, which has no epochs.

        It does so before the steps 1, 2, 4, … and then every _COMPARED steps.
        """
        step = self._own_steps = self._own_steps + 1
        if step % _COMPARED and step & (step - 1):
            return
        when = f"before step {step} of train_on_batch"
        compare_weights(self._strategy.workers, self._model, when)

    def _predict(self, batches: list[Any]) -> Any:
        """Returns the outputs for all rows of some batches, in their order."""
        outputs = [self._call("_on_batch", _as_share(batch)) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _take_steps(self, iterator: Any) -> Any:
        """Returns the logs of the next steps on an iterator's data."""
        of_data = isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator))
        by_batch = isinstance(iterator, tf.data.Iterator) and self._takes_batches()
        if of_data and not (by_batch or self._model.run_eagerly):
            return self._call("_on_iterator", iterator)
        logs = None
        for batch in itertools.islice(noting(iterator), self._model.steps_per_execution):
            logs = self._call("_on_batch", _as_share(batch))
        if logs is None:
            raise StopIteration
        return logs

    def _takes_batches(self) -> bool:
        """Whether the steps of a call take batches, as Keras reads them, and not an iterator."""
        at_once = self._model.steps_per_execution
        return self._kind == "predict" or (at_once == 1 and keras_takes_batches())

    def choose_data(self, data: Any) -> None:
        """Lets Keras read whole batches if a step must compute them.

        Args:
            data: Keras' iterator over epochs, which has read nothing yet.
        """
        shares = private_names.DISTRIBUTED_DATASET.of(data)
        if not hasattr(shares, "undivided"):
            return
        spec = shares.element_spec
        if self._takes_batches():
            rows = tf.TensorSpec([shares.batch_size, 0])  # as of the first batch
            self._trace("_on_batch", spec._replace(rows=rows), chooses=True)
        else:
            # An iterator would make a shuffled dataset begin its next epoch.
            self._trace("_on_iterator", tf.data.IteratorSpec(spec), chooses=True)
        if self._whole:
            private_names.DISTRIBUTED_DATASET.set(data, shares.undivided())

    def _call(self, name: str, data: Any) -> Any:
        """Calls a function, which is traced before the first call."""
        while True:
            self._trace(name, data)
            try:
                return getattr(self, name)(data)
            except ComputeWholeError as error:  # traced again, for data of another shape
                self._make_functions(error)

    def _trace(self, name: str, data: Any, chooses: bool = False) -> None:
        """Traces a function until it makes no variable. One that runs eagerly is not traced.

        To choose the data, it is traced until it is known that each replica computes whole batches.
        """
        if self._model.run_eagerly:
            return
        while name not in self._traced and not (chooses and self._whole):
            made = self._made
            try:
                getattr(self, name).get_concrete_function(data)
            except ComputeWholeError as error:
                self._make_functions(error)
                continue
            except (FitError, *OF_PEERS):
                raise
            except Exception as error:
                if self._depends_on_step:
                    made = self._made  # TensorFlow initializes the variable in the first step
                elif self._splits and not self._whole:
                    reason = f"it fails if the number of rows is not a constant: {error}"
                    self._make_functions(ComputeWholeError(reason))
                    continue
                else:
                    raise
            if self._made > made:
                self._make_functions(self._whole)
            else:
                self._traced.add(name)

    def make_variable(self, make: Method, **given: Any) -> Any:
        """Makes a variable outside the graph of a step, where its initial value can be computed."""
        self._made += 1
        if tf.executing_eagerly():
            return make(**given)
        arguments = {name: given[name] for name in _OF_VARIABLES if name in given}
        if tf.is_symbolic_tensor(given["initial_value"]):
            arguments["initial_value"] = tf.get_static_value(given["initial_value"])
            if arguments["initial_value"] is None:
                self._depends_on_step = True
                return make(**given)

        def make_in_scope() -> Any:
            with self._strategy.scope():
                return tf.Variable(**arguments)

        return call_outside(make_in_scope)

    def _run_steps(self, iterator: Any) -> Any:
        """Returns the result of the last of several steps, fewer if the data ends."""
        results = self.run_step(timed(iterator.get_next))
        count = self._model.steps_per_execution
        if count == 1:
            return results

        def again(_: Any, results: Any) -> Any:
            batch = timed(iterator.get_next_as_optional)
            there = batch.has_value()
            results = tf.cond(there, lambda: self.run_step(batch.get_value()), lambda: results)
            return there, results

        begin = (True, results)
        loop = tf.while_loop(lambda there, _: there, again, begin, maximum_iterations=count - 1)
        return loop[1]

    def run_step(self, batch: Any) -> Any:
        """Returns the result of a step of all replicas, which is the same in all of them."""
        patch_metrics()
        if self._whole:
            self.check_whole(batch, self._whole)
        if not tf.executing_eagerly():
            reporter.enter(COMPILING)
        # If the data has ended, no step may be counted.
        with tf.control_dependencies([batch.digest] if isinstance(batch, Share) else []):
            return run_in_replicas(self._strategy, self._in_replica, batch)

    def check_whole(self, batch: Any, error: ComputeWholeError) -> None:
        """Says why every worker computes whole batches, or cannot."""
        reason = f"the {self._kind} step of {self._model.name!r} cannot be split: {error.reason}."
        vouch = ""
        if error.vouchable:
            vouch = (
                " If each of its losses is a mean over rows, or a value for each row, pass "
                'custom_losses="mean" to the strategy, so that the workers split the batches.'
            )
        if not isinstance(batch, Share):
            raise FitError(
                f"{reason} Each worker reads its own data, so none has a whole batch. Use "
                f"AutoShardPolicy.AUTO.{vouch}"
            )
        warn_once(f"{reason} Every worker computes whole batches, as one process does.{vouch}")

    def _in_replica(self, batch: Any) -> Any:
        """Computes a replica's part of a `Share`, or all of what this worker has read itself."""
        if isinstance(batch, Share):
            whole = bool(self._whole) or not self._splits
            part, step = part_of_share(self._model, batch, self.comparison, whole=whole)
        else:
            part = batch
            step = step_on_own_data(self._model, part, self.comparison)
        part = without_optionals(part)
        graph = tf.compat.v1.get_default_graph()
        if step.seed_offset and graph.seed is not None:
            graph.seed = (graph.seed + step.seed_offset) % _SEEDS
        if not step.whole:
            step.analysis = analysis_of(part)
        creator = tf.variable_creator_scope(self.make_variable)
        if (
            self._strategy.sharing.local_replicas > 1
        ):  # the replicas' threads make variables together
            creator = contextlib.nullcontext()
        with creator, step.running():
            return self.call_step(step, part)

    def call_step(self, step: Step, part: Any) -> Any:
        """Calls the model's step, and returns its results for the whole batch."""
        statistics = statistics_of(self._model) if self._kind == "train" else []
        step.statistics = statistics
        results = tf.nest.map_structure(as_tensor, self._step(part))
        if not self._step.__module__.startswith("keras."):
            step.statistics = statistics  # the step may have asked for a metric before
        step.add_changes()
        statistics = statistics_of(self._model)  # also of layers that the step has built
        check_assignments(step, statistics)
        return tf.nest.map_structure(
            lambda one: put_together(step, one, "a result of the step"), results
        )


def as_tensor(value: Any) -> Any:
    """Converts a number, array or variable."""
    return value if value is None or isinstance(value, TENSORS) else tf.convert_to_tensor(value)


def _as_share(batch: Any) -> Any:
    """Returns a batch of `train_on_batch`, which is the same in all workers, as a dataset does."""
    values = tf.nest.flatten(batch)
    of_replicas = any(isinstance(value, tf.distribute.DistributedValues) for value in values)
    if of_replicas or isinstance(batch, Share):
        return batch
    return share(tf.nest.map_structure(as_tensor, batch))
