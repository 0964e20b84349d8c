"""Every private name of Keras and TensorFlow that this package uses, in one table.

A new version of Keras or TensorFlow may change such a name without notice. All names that `fit`
needs are resolved before the first of them is replaced. If one is missing, nothing is replaced, and
`fit` raises a KerasError; training loops of one's own still work. The table also contains the
public names that are replaced. Its entries are places::

    module:Class.method            a method, class or function
    module:function(first, other)  one whose first parameters have these names
    module:Class().attribute       an attribute of instances
    module:function().variable     a local variable of a function that is running
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any, List, Sequence, Type, Union

import tensorflow as tf

from slurm_resolver.errors import KerasError, ResumeError
from slurm_resolver.preflight.keras_version import older_keras

# Who needs a name, as messages say it, and whether anybody misses it: without an optional name,
# an old fault of Keras or TensorFlow is back, or one warning less is given.
FIT = "fit on several workers"
BACKUP = "BackupAndResume"
RESUME = "resuming a training"
OPTIONAL = "no one"

REPLACED = "replaced_by_slurm_resolver"  # an attribute of replaced functions
_LISTED = 3  # missing names in a message
_ABSENT = object()


class Name:
    """A name of Keras or TensorFlow, which the installed version may lack.

    Attributes:
        place: where it is, as in the table.
        name: its last part.
        needed_by: `FIT`, `BACKUP`, `RESUME` or `OPTIONAL`.
    """

    def __init__(self, needed_by: str, place: str, since: str = "") -> None:
        self.place = place
        self.needed_by = needed_by
        self._since = since
        self._module, _, rest = place.partition(":")
        self._parameters: List[str] = []
        if rest.endswith(")"):
            rest, _, parameters = rest[:-1].partition("(")
            self._parameters = parameters.split(", ")
        self._path, _, self.name = rest.rpartition(".")
        self.of_instances = self._path.endswith("()")
        self._path = self._path.replace("()", "")

    def __str__(self) -> str:
        return self.place

    def owner(self) -> Any:
        """Returns the module, or the base class that defines it; None if it is missing."""
        holder = self._holder()
        if isinstance(holder, type) and not self.of_instances:
            return next((base for base in holder.__mro__ if self.name in vars(base)), None)
        return holder if self.of_instances or hasattr(holder, self.name) else None

    def find(self) -> Any:
        """Returns the class, function or method; None if it is missing."""
        owner = self.owner()
        return None if owner is None else getattr(owner, self.name, None)

    def get(self) -> Any:
        """Returns the class, function or method; raises an error if it is missing."""
        found = self.find()
        if found is None:
            raise error_of([self])
        return found

    def of(self, thing: Any, *default: Any) -> Any:
        """Returns an attribute of a thing; the default is for a thing of another class.

        It is also for an optional name, and for a version that is older than the name.
        """
        value = getattr(thing, self.name, _ABSENT)
        if value is not _ABSENT:
            return value
        if default and (
            self.needed_by == OPTIONAL or self._is_newer() or not self.belongs_to(thing)
        ):
            return default[0]
        raise error_of([self])

    def set(self, thing: Any, value: Any) -> None:
        """Sets an attribute that a thing has."""
        self.of(thing)
        setattr(thing, self.name, value)

    def belongs_to(self, thing: Any) -> bool:
        """Whether a thing is of the class that has this attribute."""
        holder = self._holder()
        return isinstance(holder, type) and isinstance(thing, holder)

    def is_missing(self) -> bool:
        """Whether the installed version lacks it; an attribute of instances if its class lacks."""
        if self._is_newer():
            return False
        owner = self.owner()
        if owner is None:
            return True
        if self.of_instances:
            code = getattr(inspect.unwrap(owner), "__code__", None)
            return code is not None and self.name not in code.co_varnames
        return bool(self._parameters) and not _accepts(self.find(), self._parameters)

    def _holder(self) -> Any:
        """Returns the module or class before the last dot; None if it is missing."""
        try:
            found: Any = importlib.import_module(self._module)
            for part in filter(None, self._path.split(".")):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            return None
        return found

    def _is_newer(self) -> bool:
        """Whether the installed version is older than the name."""
        return bool(self._since) and _numbers(version_of(self)) < _numbers(self._since)


def _accepts(function: Any, parameters: Sequence[str]) -> bool:
    """Whether a function has these first parameters, and needs no others."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    others = (one for one in found[len(parameters) :] if one.default is one.empty)
    needed = [one for one in others if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return [one.name for one in found[: len(parameters)]] == [*parameters] and not needed


def _numbers(version: str) -> List[int]:
    return [int(part) for part in version.split(".")[:2]]


def version_of(name: Name) -> str:
    """Returns the version of the library that a name is from."""
    if not name.place.startswith("keras"):
        return str(tf.__version__)
    return str(sys.modules["keras"].__version__)


def error_of(missing: Sequence[Name]) -> Union[KerasError, ResumeError]:
    """Returns the error that says which names are missing, and what to do."""
    first = missing[0]
    version = version_of(first)
    if first.place.startswith("keras"):
        library = "Keras"
        older = older_keras(version)
    else:
        library = "TensorFlow"
        older = f"tensorflow<{'.'.join(map(str, _numbers(version)))}"
    listed = ", ".join(str(name).replace(":", ".") for name in missing[:_LISTED])
    if len(missing) > _LISTED:
        listed += f" and {len(missing) - _LISTED} other names"
    loops = " A training loop of your own works." if first.needed_by == FIT else ""
    kind: Type[Union[KerasError, ResumeError]] = KerasError
    if first.needed_by == RESUME:
        kind = ResumeError
    return kind(
        f"{library} {version} has no {listed}, which {first.needed_by} needs. Use an older "
        f"{library}, pip install '{older}', or a newer slurm_resolver.{loops}"
    )


def missing_names(needed_by: str) -> List[Name]:
    """Returns the names that somebody needs and the installed versions lack."""
    return [name for name in table if name.needed_by == needed_by and name.is_missing()]


def check_names(needed_by: str, *things: Any) -> None:
    """Raises an error if a name is missing, or a thing lacks an attribute that is in the table."""
    missing = missing_names(needed_by)
    for name in table:
        if name.needed_by == needed_by and name.of_instances:
            lacking = (one for one in things if name.belongs_to(one))
            missing += [name for one in lacking if not hasattr(one, name.name)]
    if missing:
        raise error_of(missing)


@functools.cache  # before anything is replaced
def fit_problem() -> str:
    """Returns which names that `fit` needs are missing, and what to do; '' if none is."""
    missing = missing_names(FIT)
    return str(error_of(missing)) if missing else ""


def check_fit() -> None:
    """Raises KerasError if a name is missing that `fit` needs."""
    problem = fit_problem()
    if problem:
        raise KerasError(problem)


table: List[Name] = []


def _fit(place: str) -> Name:
    table.append(Name(FIT, place))
    return table[-1]


def _backup(place: str, since: str = "") -> Name:
    table.append(Name(BACKUP, place, since))
    return table[-1]


def _resume(place: str) -> Name:
    table.append(Name(RESUME, place))
    return table[-1]


def _optional(place: str) -> Name:
    table.append(Name(OPTIONAL, place))
    return table[-1]


# A strategy makes the functions that run steps, and splits the data by rows.
MAKE_TRAIN_FUNCTION = _fit("keras:Model.make_train_function(self, force)")
MAKE_TEST_FUNCTION = _fit("keras:Model.make_test_function(self, force)")
MAKE_PREDICT_FUNCTION = _fit("keras:Model.make_predict_function(self, force)")
_TRAINER = "keras.src.backend.tensorflow.trainer"
READ_DATA = _fit(f"{_TRAINER}:TFEpochIterator.__init__(self, distribute_strategy)")
DISTRIBUTED_DATASET = _fit(f"{_TRAINER}:TFEpochIterator()._distributed_dataset")

# A model is built and compiled in its scope.
BUILD_FOR_DATA = _fit("keras:Model._maybe_symbolic_build(self, iterator, data_batch)")
COMPILE = _fit("keras:Model.compile")
LOAD_WEIGHTS = _fit("keras:Model.load_weights(self, filepath)")
QUANTIZE = _fit("keras:Model.quantize(self, mode)")
OPEN_NAME_SCOPE = _fit("keras:Model._open_name_scope(self)")
_OPTIMIZER = "keras:optimizers.Optimizer"
ADD_OPTIMIZER_VARIABLE = _fit(f"{_OPTIMIZER}.add_variable(self, shape)")
ADD_SLOT = _fit(f"{_OPTIMIZER}.add_variable_from_reference(self, reference_variable)")
STRATEGY_OF_OPTIMIZER = _fit(f"{_OPTIMIZER}()._distribution_strategy")
FLATTEN_LAYERS = _fit("keras:layers.Layer._flatten_layers")
IN_STATELESS_SCOPE = _fit("keras.src.backend.common.stateless_scope:in_stateless_scope")

# Gradients are means over all replicas' rows, and so are not scaled by the number of replicas.
GRADIENT = _fit("tensorflow:GradientTape.gradient(self, target, sources, output_gradients)")
SCALE_LOSS = _fit("keras.src.losses.loss:scale_loss_for_distribution(value)")
UNSCALE_LOSS = _fit("keras.src.losses.loss:unscale_loss_for_distribution(value)")
SUM_GRADIENTS = _fit("keras:optimizers.Optimizer._all_reduce_sum_gradients(self, grads_and_vars)")
_SCALED = "keras:optimizers.LossScaleOptimizer"
APPLY_IN_REPLICAS = _fit(f"{_SCALED}._tf_apply(self, grads, trainable_variables)")
APPLY = _fit("keras:optimizers.Optimizer.apply(self, grads, trainable_variables)")
APPLY_ALONE = _fit(f"{_SCALED}._common_apply(self, grads, trainable_variables)")

# Losses that are not means over rows see the rows of all replicas.
REDUCE_LOSS = _fit(
    "keras.src.losses.loss:reduce_weighted_values(values, sample_weight, mask, reduction, dtype)"
)
LOSS = _fit("keras:losses.Loss.__call__(self, y_true, y_pred, sample_weight)")
COMPILED_LOSS = _fit("keras.src.trainers.compile_utils:CompileLoss.call(self, y_true, y_pred)")
ADDITIONAL_LOSS = _fit("keras:Model._aggregate_additional_loss(self, loss)")
ADD_LOSS = _fit("keras:layers.Layer.add_loss(self, loss)")
LOSS_FUNCTION = _fit("keras.src.losses.losses:LossFunctionWrapper().fn")
METRIC_FUNCTION = _fit("keras:metrics.MeanMetricWrapper()._fn")
GET_MASK = _fit("keras.src.backend.common.masking:get_keras_mask(x)")
SET_MASK = _fit("keras.src.backend.common.masking:set_keras_mask(x, mask)")

# A metric's variables are the same in all workers. These two metrics only contain others.
ADD_VARIABLE = _fit(
    "keras:metrics.Metric.add_variable(self, shape, initializer, dtype, aggregation, name)"
)
COMPILE_METRICS = _fit("keras.src.trainers.compile_utils:CompileMetrics")
METRICS_LIST = _fit("keras.src.trainers.compile_utils:MetricsList")
METRICS_RESULT = _fit("keras:Model.get_metrics_result(self)")
ASSIGN_ADD = _fit("keras:Variable.assign_add(self, value)")

# A tf.function that a step calls is traced as a part of the step.
_FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function"
CALL_FUNCTION = _fit(f"{_FUNCTION}.__call__")
JIT_COMPILE = _fit(f"{_FUNCTION}()._jit_compile")
AUTOGRAPH = _fit(f"{_FUNCTION}()._autograph")
CONVERT_BY_AUTOGRAPH = _fit(
    "tensorflow.python.eager.polymorphic_function.autograph_util:py_func_from_autograph"
)
AUTOGRAPH_CONTEXT = _fit("tensorflow.python.autograph.core.ag_ctx:ControlStatusCtx")
AUTOGRAPH_STATUS = _fit("tensorflow.python.autograph.core.ag_ctx:Status")

# All workers make a variable together, of any type.
_EXTENDED = (
    "tensorflow.python.distribute.collective_all_reduce_strategy:CollectiveAllReduceExtended"
)
CREATE_VARIABLE = _fit(f"{_EXTENDED}._create_variable")
INITIAL_VALUE = _fit(f"{_EXTENDED}._get_variable_creator_initial_value")

# Replicas draw different masks of dropout from equal seeds.
NEXT_SEED = _fit("keras:random.SeedGenerator.next(self)")

# One worker writes.
EXPORT = _fit("keras:Model.export(self, filepath)")
SAVE_MODEL = _fit("keras.src.saving.saving_lib:save_model(model, filepath)")
SAVE_WEIGHTS = _fit("keras.src.saving.saving_lib:save_weights_only(model, filepath)")
SAVE_H5 = _fit("keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5(model, filepath)")
SAVE_BACKUP = _fit("keras:callbacks.BackupAndRestore._save_model(self)")
MAKE_FOLDER = _fit("keras.src.utils.file_utils:makedirs(path)")
SKIPPED_ATTRIBUTES = _fit("keras.src.saving.saving_lib:get_attr_skipset(obj_type)")

# `float(learning_rate)` works, and so do collectives in conditions.
DISTRIBUTED_VARIABLE = _fit("tensorflow.python.distribute.values:DistributedVariable")
CONDITION = _fit("tensorflow.python.ops.control_flow_v2_func_graphs:ControlFlowFuncGraph")
CAPTURE = _fit("tensorflow.python.framework.func_graph:FuncGraph.capture_call_time_value")

# A dataset is looked through before it is split by rows.
INPUTS = _fit("tensorflow:data.Dataset._inputs(self)")
GRAPH = _fit("tensorflow:data.Dataset._as_serialized_graph")
PREFETCHED = _fit("tensorflow.python.data.ops.prefetch_op:_PrefetchDataset")
DATASET = _fit("tensorflow.python.data.ops.iterator_ops:OwnedIterator()._dataset")

# If a worker fails or is lost, the collectives of the others end with an error that says why.
CONTEXT = _fit("tensorflow.python.eager.context:context")
ABORT = _fit("tensorflow.python.eager.context:Context.abort_collective_ops(self, code, message)")

# `fit` begins where it ended: BackupAndResume finds the data and the callbacks of the running fit,
# and moves the position in the data.
FIT_DATA = _backup("keras:Model.fit().epoch_iterator")
FIT_CALLBACKS = _backup("keras:Model.fit().callbacks")
_EPOCH_ITERATOR = "keras.src.trainers.epoch_iterator:EpochIterator()"
GET_ITERATOR = _backup(f"{_EPOCH_ITERATOR}._get_iterator")
CURRENT_ITERATOR = _backup(f"{_EPOCH_ITERATOR}._current_iterator")
NUM_BATCHES = _backup(f"{_EPOCH_ITERATOR}._num_batches")
STEPS_SEEN = _backup(f"{_EPOCH_ITERATOR}._steps_seen")
STEPS_PER_EPOCH = _backup(f"{_EPOCH_ITERATOR}.steps_per_epoch")
DATA_ADAPTER = _backup(f"{_EPOCH_ITERATOR}.data_adapter")
_ADAPTERS = "keras.src.trainers.data_adapters"
ARRAYS = _backup(f"{_ADAPTERS}.array_data_adapter:ArrayDataAdapter")
ARRAYS_BATCH_SIZE = _backup(f"{_ADAPTERS}.array_data_adapter:ArrayDataAdapter.batch_size")
GENERATOR = _backup(f"{_ADAPTERS}.generator_data_adapter:GeneratorDataAdapter")
PY_DATASET = _backup(f"{_ADAPTERS}.py_dataset_adapter:PyDatasetAdapter")
INITIAL_EPOCH = _backup("keras:Model()._initial_epoch")
SYMBOLIC_BUILD = _backup("keras:Model._symbolic_build(self, iterator, data_batch)")
FLUSH_FUTURES = _backup("keras:callbacks.CallbackList._flush_futures(self)", since="3.12")

# The size of a dataset's batches, to convert the position if another number of workers resumes.
_DATA = "tensorflow.python.data.ops"
ORIGINAL_DATASET = _resume(
    "tensorflow.python.distribute.input_lib:DistributedDataset()._original_dataset"
)
OPTIONS_DATASET = _resume(f"{_DATA}.dataset_ops:_OptionsDataset")
MAP_DATASET = _resume(f"{_DATA}.map_op:_MapDataset")
PARALLEL_MAP_DATASET = _resume(f"{_DATA}.map_op:_ParallelMapDataset")
PREFETCH_DATASET = _resume(f"{_DATA}.prefetch_op:_PrefetchDataset")
BATCH_DATASET = _resume(f"{_DATA}.batch_op:_BatchDataset")
PARALLEL_BATCH_DATASET = _resume(f"{_DATA}.batch_op:_ParallelBatchDataset")
PADDED_BATCH_DATASET = _resume(f"{_DATA}.padded_batch_op:_PaddedBatchDataset")
SPARSE_BATCH_DATASET = _resume(f"{_DATA}.sparse_batch_op:_DenseToSparseBatchDataset")
BATCH_SIZE = _resume(f"{_DATA}.batch_op:_BatchDataset()._batch_size")
INPUT_DATASETS = _resume("tensorflow:data.Dataset._inputs(self)")
TENSOR_PROTO = _resume("tensorflow.core.framework.tensor_pb2:TensorProto")

# Without it, a rank that ends first leaves a traceback in the others' logs.
WATCH_KEY = _optional(
    "tensorflow:distribute.experimental.PreemptionCheckpointHandler._watch_step_to_save_key(self)"
)
# Without it, a resolver that comes too late to set the GPUs does not warn.
PHYSICAL_DEVICES = _optional("tensorflow.python.eager.context:Context()._physical_devices")
# Without these, a coordinator that has lost a worker may not end.
_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
STOP_PREEMPTION = _optional(f"{_COORDINATOR}:WorkerPreemptionHandler.stop(self)")
UPDATE_OR_FINISH = _optional(
    f"{_COORDINATOR}:WorkerPreemptionHandler()._cluster_due_for_update_or_finish"
)
SHOULD_RUN = _optional(f"{_COORDINATOR}:WorkerPreemptionHandler()._should_preemption_thread_run")
# Without these, `install` replaces the class only where it is public.
_RESOLVERS = "tensorflow.python.distribute.cluster_resolver"
RESOLVER = _optional(f"{_RESOLVERS}:SlurmClusterResolver")
RESOLVER_ITSELF = _optional(f"{_RESOLVERS}.slurm_cluster_resolver:SlurmClusterResolver")
