"""Keras 3's train, test and predict functions on several workers."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.preflight.keras_version import keras_takes_batches
from slurm_resolver.tf.data_waits import timed
from slurm_resolver.tf.keras import borrowed
from slurm_resolver.tf.keras.comparison import DIFFERENCE, Comparison, call_outside
from slurm_resolver.tf.keras.configuration import compare_entries, describe_model
from slurm_resolver.tf.keras.drift import REMEDY, compare_weights
from slurm_resolver.tf.keras.patches import patch_metrics
from slurm_resolver.tf.keras.sharing import (
    TENSORS,
    Share,
    count_rows,
    have_other_rows,
    names_of_tensors,
    part_of_batch,
    share,
    without_optionals,
)
from slurm_resolver.tf.keras.step import (
    Step,
    all_reduce,
    gather_rows,
    replica_number,
    run_in,
    run_in_replicas,
)
from slurm_resolver.tf.keras.verdicts import (
    ComputeWholeError,
    analysis_of,
    check_assignments,
    together,
)
from slurm_resolver.tf.progress import noting, reporter

Method = Callable[..., Any]
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


def _part(
    strategy: Any, model: Any, share: Share, whole: bool, comparison: Comparison
) -> tuple[Any, Step]:
    """Returns a replica's part of a batch, and its step.

    Replica r of R has the rows r, r + R, r + 2 R, and so on.
    """
    sharing = strategy.sharing
    replica = replica_number()
    batch = share.batch
    rows = count_rows(batch if share.rows is None else share.rows)
    own = (rows + sharing.replicas - 1 - replica) // sharing.replicas
    places = tf.range(own) * sharing.replicas + replica
    # For no rows, many layers and losses return NaN. It is a tensor if a number of rows is unknown.
    repeated = rows < sharing.replicas
    if share.rows is None:
        first = replica
        stride = sharing.replicas
        others = have_other_rows(batch)
        # TensorFlow's `or` would make a tensor of what is known.
        repeated = repeated or others if isinstance(repeated, bool) else repeated | others
    else:  # the worker has no rows but those of its replicas
        first = replica - sharing.first
        stride = sharing.local
    count = tf.cast(own, tf.int32)
    if not whole and not tf.executing_eagerly():
        # The number of rows must not be a constant: the analysis would not know it from others.
        count = tf.compat.v1.placeholder_with_default(count, [])
    with tf.device("/cpu:0"):  # other rows need not be copied to a GPU
        if not whole or share.rows is not None:
            batch = part_of_batch(batch, count=count, first=first, stride=stride, repeated=repeated)
        if whole and share.rows is not None:
            batch = tf.nest.map_structure(
                lambda one: gather_rows(one, places, rows, repeated), batch
            )
    repeated = whole or repeated
    return batch, Step(
        model,
        replica,
        rows=tf.cast(rows, tf.int32),
        own=tf.where(repeated, rows, own),
        places=places,
        repeated=repeated,
        comparison=comparison,
        digest=share.digest,
        names=names_of_tensors(share),
        whole=whole,
    )


def _own(strategy: Any, model: Any, part: Any, comparison: Comparison) -> tuple[Any, Step]:
    """Returns the data that this worker has read for itself, and its step."""
    replicas = strategy.sharing.replicas
    replica = replica_number()
    own = tf.cast(count_rows(part), tf.int32)
    counts = all_reduce(tf.one_hot(replica, replicas, on_value=own, off_value=0, dtype=tf.int32))
    return part, Step(
        model,
        replica,
        rows=tf.reduce_sum(counts),
        own=own,
        places=tf.range(own) + tf.reduce_sum(counts[:replica]),
        repeated=False,
        comparison=comparison,
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

    def __init__(self, model: Any, kind: str) -> None:
        self._model = model
        self._kind = kind
        self._step = getattr(model, f"{kind}_step")
        self._strategy = model.distribute_strategy
        self._made = 0  # variables, while steps were traced
        self._depends_on_step = False  # whether one gets a value that the step computes
        self._own_steps = 0  # of `train_on_batch`
        self.comparison = Comparison(self._strategy, model, kind)
        self._splits = self._strategy.sharing.replicas > 1
        self._vouched = self._strategy.custom_losses == "mean"
        eager = self._splits and model.run_eagerly and not self._vouched
        self._whole: ComputeWholeError | None = None  # why each replica computes whole batches
        self._make_functions(ComputeWholeError("it runs eagerly", vouched=True) if eager else None)

    def _make_functions(self, whole: ComputeWholeError | None) -> None:
        """Makes the functions of a step; with a reason, each replica computes whole batches."""
        self._whole = whole
        self._traced: set[str] = set()  # which of the functions have been traced
        self._on_batch = compiled(self._model, self._run)
        self._on_iterator = compiled(self._model, self._run_several)

    def __call__(self, data: Any) -> Any:
        """Returns the outputs for a list of batches, or the logs of an iterator's next steps."""
        count = len(data) if isinstance(data, list) else self._model.steps_per_execution
        if self._kind == "train" and not self._strategy.workers.call:
            self._compare_in_own_loop()
        reporter.begin_step(count)
        try:
            with self._strategy.workers.step():
                return self._predict(data) if isinstance(data, list) else self._take(data, count)
        except (tf.errors.OpError, FitError) as error:
            if DIFFERENCE in str(error):
                raise FitError(self.comparison.describe()) from error
            if _MISMATCH in str(error):
                entries = describe_model(self._model)
                compare_entries(self._strategy.workers, "this step", entries)
                raise FitError(
                    f"the workers compute different steps {reporter.where()}".rstrip()
                    + f": {str(error).partition(_MISMATCH)[2].partition('.')[0].strip()}. {REMEDY}"
                ) from error
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
        # Such a loop has no callbacks.
        when = f"before step {step} of train_on_batch"
        compare_weights(self._strategy.workers, self._model, callbacks=(), when=when)

    def _predict(self, batches: list[Any]) -> Any:
        """Returns the outputs for all rows of some batches, in their order."""
        outputs = [self._call("_on_batch", _shared(batch)) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _take(self, iterator: Any, count: int) -> Any:
        of_data = isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator))
        by_batch = isinstance(iterator, tf.data.Iterator) and self._takes_batches(count)
        if of_data and not (by_batch or self._model.run_eagerly):
            return self._call("_on_iterator", iterator)
        logs = None
        for _, batch in zip(range(count), noting(iterator)):
            logs = self._call("_on_batch", _shared(batch))
        if logs is None:
            raise StopIteration
        return logs

    def _takes_batches(self, count: int) -> bool:
        """Whether the steps of a call take batches, as Keras reads them, and not an iterator."""
        return self._kind == "predict" or (count == 1 and keras_takes_batches())

    def choose_data(self, data: Any) -> None:
        """Lets Keras read whole batches if a step must compute them.

        Args:
            data: Keras' iterator over epochs, which has read nothing yet.
        """
        shares = borrowed.DISTRIBUTED_DATASET.of(data)
        if not hasattr(shares, "undivided"):
            return
        spec = shares.element_spec
        if not self._model.run_eagerly:
            if self._takes_batches(self._model.steps_per_execution):
                rows = tf.TensorSpec([shares.batch_size, 0])  # as of the first batch
                self._trace("_on_batch", spec._replace(rows=rows))
            else:
                # An iterator would make a shuffled dataset begin its next epoch.
                self._trace("_on_iterator", tf.data.IteratorSpec(spec))
        if self._whole is not None:
            borrowed.DISTRIBUTED_DATASET.set(data, shares.undivided())

    def _call(self, name: str, data: Any) -> Any:
        """Calls a function, which is traced before the first call."""
        self._trace(name, data)
        try:
            return getattr(self, name)(data)
        except ComputeWholeError as error:  # in a step that runs eagerly
            self._make_functions(error)
            return getattr(self, name)(data)

    def _trace(self, name: str, data: Any) -> None:
        """Traces a function until it makes no variable."""
        while name not in self._traced:
            made = self._made
            try:
                if not self._model.run_eagerly:
                    getattr(self, name).get_concrete_function(data)
            except ComputeWholeError as error:
                self._make_functions(error)
                continue
            except FitError:
                raise
            except Exception as error:
                if self._depends_on_step:
                    made = self._made  # TensorFlow initializes the variable in the first step
                elif self._splits and self._whole is None and not self._model.run_eagerly:
                    reason = f"it needs the number of rows as a constant: {error}"
                    self._make_functions(ComputeWholeError(reason))
                    continue
                else:
                    raise
            if self._made > made:
                self._make_functions(self._whole)
            else:
                self._traced.add(name)

    def _make_variable(self, make: Method, **given: Any) -> Any:
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

    def _run_several(self, iterator: Any) -> Any:
        results = self._run(timed(iterator.get_next))
        count = self._model.steps_per_execution
        if count == 1:
            return results

        def again(done: Any, results: Any) -> Any:
            batch = timed(iterator.get_next_as_optional)
            there = batch.has_value()
            results = tf.cond(there, lambda: self._run(batch.get_value()), lambda: results)
            return tf.where(there, done + 1, count), results

        return tf.while_loop(lambda done, _: done < count, again, (1, results))[1]

    def _run(self, batch: Any) -> Any:
        """Returns the result of a step of all replicas, which is the same in all of them."""
        import keras

        patch_metrics(keras)
        if self._whole is not None:
            self._check_whole(batch, self._whole)
        elif isinstance(batch, Share) and have_other_rows(batch.batch) is True:
            raise ComputeWholeError("the first dimensions of its tensors differ")
        if not tf.executing_eagerly():
            reporter.enter(COMPILING)
        # If the data has ended, no step may be counted.
        with tf.control_dependencies([batch.digest] if isinstance(batch, Share) else []):
            return run_in_replicas(self._strategy, self._in_replica, batch)

    def _check_whole(self, batch: Any, error: ComputeWholeError) -> None:
        """Says why every worker computes whole batches, or cannot."""
        reason = f"the {self._kind} step of {self._model.name!r} cannot be split: {error.reason}."
        vouch = ""
        if error.vouched:
            vouch = (
                " If each of its losses is a mean over rows, or a value for each row, pass "
                'custom_losses="mean" to the strategy, so that the workers split the batches.'
            )
        if not isinstance(batch, Share):
            raise FitError(
                f"{reason} Each worker reads its own data, so that none has a whole batch. Use "
                f"AutoShardPolicy.AUTO.{vouch}"
            )
        warn_once(f"{reason} Every worker computes whole batches, as one process does.{vouch}")

    def _in_replica(self, batch: Any) -> Any:
        """Computes a replica's part of a `Share`, or all of what this worker has read itself."""
        if isinstance(batch, Share):
            part, step = _part(
                self._strategy, self._model, batch, self._whole is not None, self.comparison
            )
        else:
            part, step = _own(self._strategy, self._model, batch, self.comparison)
        graph = tf.compat.v1.get_default_graph()
        if step.draw and not tf.executing_eagerly() and graph.seed is not None:
            # Each replica has other rows, which draw other random numbers.
            graph.seed = (graph.seed + 1_000_003 * step.draw) % _SEEDS
        part = without_optionals(part)
        step.vouched = self._vouched
        step.whole |= not self._splits  # one replica has all rows
        if not step.whole and not tf.executing_eagerly():
            step.analysis = analysis_of(part)
        if self._strategy.sharing.local > 1:  # the replicas' threads make variables together
            return run_in(step, lambda: self._compute(step, part))
        with tf.variable_creator_scope(self._make_variable):
            return run_in(step, lambda: self._compute(step, part))

    def _compute(self, step: Step, part: Any) -> Any:
        statistics = _statistics(self._model) if self._kind == "train" else []
        step.statistics = statistics
        results = tf.nest.map_structure(as_tensor, self._step(part))
        if not self._step.__module__.startswith("keras."):
            step.statistics = statistics  # the step may have asked for a metric before
        step.add_changes()
        check_assignments(step, _statistics(self._model))  # also of layers that the step has built
        return tf.nest.map_structure(
            lambda one: together(step, one, "a result of the step"), results
        )


def _statistics(model: Any) -> list[Any]:
    """Returns the moving averages of BatchNormalization, which each replica takes of its rows."""
    import keras

    return [
        variable
        for layer in borrowed.FLATTEN_LAYERS.of(model)()
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in layer.non_trainable_variables
        if not variable.value.trainable
    ]


def as_tensor(value: Any) -> Any:
    """Converts a number, array or variable."""
    return value if value is None or isinstance(value, TENSORS) else tf.convert_to_tensor(value)


def _shared(batch: Any) -> Any:
    """Returns a batch of `train_on_batch`, which is the same in all workers, as a dataset does."""
    values = (Share, tf.distribute.DistributedValues)
    if any(isinstance(value, values) for value in (batch, *tf.nest.flatten(batch))):
        return batch
    return share(tf.nest.map_structure(as_tensor, batch))
