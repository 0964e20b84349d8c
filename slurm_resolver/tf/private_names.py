"""Every private name of Keras, TensorFlow and Python that this package uses, one assignment each.

A new version of Keras or TensorFlow may change such a name without notice. All names that `fit`
needs are resolved before the first of them is replaced. If one is missing, nothing is replaced, and
`fit` raises a KerasError; training loops of one's own still work. The public names that are
replaced are here too. A name is given by its place::

    module:Class.method            a method, class or function
    module:function(first, other)  one whose first parameters have these names
    module:Class().attribute       an attribute of instances
    module:function().variable     a local variable of a function that is running
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from typing import Any, Callable

from slurm_resolver.errors import KerasError, ResumeError, SlurmResolverError

# A method or function of Keras or TensorFlow, such as one that is replaced.
Method = Callable[..., Any]

REPLACED = "replaced_by_slurm_resolver"  # an attribute of replaced functions

table: list[Name] = []


class Name:
    """A name of Keras or TensorFlow, which the installed version may lack: `fit` needs it.

    Attributes:
        needed_by: who needs it, as messages say it.
        error: the error without it.
        place: where it is, in one of the forms above.
        name: its last part.
        of_instances: whether only instances have it, or a function that is running.
    """

    needed_by = "fit on several workers needs (a training loop of your own does not)"
    error: type[SlurmResolverError] = KerasError

    def __init__(self, place: str) -> None:
        self.place = place
        self._holder, self.of_instances, self.name, parameters = re.findall(
            r"^(.+?:.*?)(\(\))?\.?(\w+)(?:\((\w.*)\))?$",
            place,
        )[0]
        self._parameters = tuple(re.findall(r"\w+", parameters))
        table.append(self)

    def owner(self) -> object:
        """Returns the module, or the base class that defines it; None if it is missing."""
        holder = self._find_holder()
        for owner in getattr(holder, "__mro__", [holder]):
            if self.name in getattr(owner, "__dict__", ()):
                return owner
        return None

    def find(self) -> Any:
        """Returns the class, function or method; None if it is missing."""
        owner = self.owner()
        return owner and getattr(owner, self.name)

    def get(self) -> Any:
        """Returns the class, function or method; raises an error if it is missing."""
        value = self.find()
        if value is None:
            raise error_of(self)
        return value

    def of(self, thing: object, *default: object) -> Any:
        """Returns an attribute of a thing.

        A thing of another class has the default, and so has one that lacks an optional name.
        """
        lacks = self._is_lacked_by(thing) if default else not hasattr(thing, self.name)
        if lacks and not isinstance(self, OptionalName):
            raise error_of(self)
        return getattr(thing, self.name, *default)

    def set(self, thing: object, value: object) -> None:
        """Sets an attribute that a thing has."""
        self.of(thing)
        setattr(thing, self.name, value)

    def is_missing(self, *things: object) -> bool:
        """Whether the installed version lacks it, or one of these things that should have it."""
        if self.of_instances:
            return self._find_holder() is None or any(map(self._is_lacked_by, things))
        function = inspect.unwrap(self.find())
        code = getattr(function, "__code__", None)
        parameters = getattr(code, "co_varnames", ())[: len(self._parameters)]
        return function is None or parameters != self._parameters

    def replace(self, replacement: Method, owner: object = None) -> None:
        """Replaces the function by `replacement(original, …)`, by default where it is defined."""
        replace(owner or self.owner(), self.name, replacement)

    def _is_lacked_by(self, thing: object) -> bool:
        """Whether a thing is of the class that should have this attribute, but has it not."""
        kind = self._find_holder()
        return inspect.isclass(kind) and isinstance(thing, kind) and not hasattr(thing, self.name)

    def _find_holder(self) -> object:
        """Returns the module or class before the last dot; None if it is missing."""
        try:
            return pkgutil.resolve_name(self._holder)
        except (ImportError, AttributeError):
            return None


class ResumeName(Name):
    """A name that `BackupAndResume` and `ResumableLoop` need."""

    needed_by = "resuming a training needs"
    error = ResumeError


class OptionalName(Name):
    """Without it, an old fault of Keras or TensorFlow is back, or one warning less is given."""

    needed_by = "no one needs"


def replace(owner: object, name: str, replacement: Method) -> None:
    """Replaces a function by `replacement(original, …)`.

    It does nothing if the owner has no such function, or if this one is replaced already.
    """
    original = getattr(owner, name, None)
    if not original or hasattr(original, REPLACED):
        return

    @functools.wraps(original)
    def replaced(*args: object, **kwargs: object) -> object:
        return replacement(original, *args, **kwargs)

    setattr(replaced, REPLACED, True)
    setattr(owner, name, replaced)


def error_of(first: Name, *others: Name) -> Exception:
    """Returns the error that says which names are missing, and what to do."""
    library = re.split("[.:]", first.place)[0]
    version = importlib.import_module(library).__version__
    places = ", ".join(name.place for name in (first, *others)).replace(":", ".")
    return first.error(
        f"{library} {version} has no {places}, which {first.needed_by}. Use an older version, "
        f"pip install '{library}<{version.rpartition('.')[0]}', or a newer slurm_resolver."
    )


def find_problem(kind: type[Name], *things: object) -> Exception | None:
    """Returns the error if names of a kind are missing, or attributes of one of the things."""
    lacking = [name for name in table if type(name) is kind and name.is_missing(*things)]
    return error_of(*lacking) if lacking else None


@functools.cache  # before anything is replaced
def fit_problem() -> str:
    """Returns which names that `fit` needs are missing, and what to do; '' if none is."""
    return str(find_problem(Name) or "")


def check_fit() -> None:
    """Raises KerasError if a name is missing that `fit` needs."""
    if fit_problem():
        raise KerasError(fit_problem())


# A strategy makes the functions that run steps, and splits the data by rows.
MAKE_TRAIN_FUNCTION = Name("keras:Model.make_train_function(self, force)")
MAKE_TEST_FUNCTION = Name("keras:Model.make_test_function(self, force)")
MAKE_PREDICT_FUNCTION = Name("keras:Model.make_predict_function(self, force)")
READ_DATA = Name(
    "keras.src.backend.tensorflow.trainer:TFEpochIterator.__init__(self, distribute_strategy)"
)
DISTRIBUTED_DATASET = Name(
    "keras.src.backend.tensorflow.trainer:TFEpochIterator()._distributed_dataset"
)
MAKE_ITERATOR = Name("keras.src.backend.tensorflow.trainer:TFEpochIterator._get_iterator(self)")
DATA_ADAPTER = Name("keras.src.trainers.epoch_iterator:EpochIterator().data_adapter")
ARRAYS = Name("keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter")

# A coordinator's model is built without data.
BUILD_FOR_DATA = Name("keras:Model._maybe_symbolic_build(self, iterator, data_batch)")
FLATTEN_LAYERS = Name("keras:layers.Layer._flatten_layers")

# The graph of a step is planned, with the functions that it calls.
SET_ATTRIBUTE = Name("tensorflow:Operation._set_attr(self, attr_name, attr_value)")
FUNCTION_OF_GRAPH = Name("tensorflow:Graph._get_function(self, name)")
GRAPH_OF_DEFINITION = OptionalName(
    "tensorflow.python.framework.function_def_to_graph:function_def_to_graph("
    "fdef, structured_input_signature)"
)
EVALUATE_CONSTANT = Name("tensorflow.python.framework.tensor_util:try_evaluate_constant(tensor)")
MOMENTS = Name("keras:layers.BatchNormalization._moments(self, inputs, mask)")
# Without these, an error of a step does not say which line of the program has made the operation.
SET_TRACEBACK = OptionalName("tensorflow.python.client.pywrap_tf_session:TF_SetOpStackTrace")
OPERATION_IN_C = OptionalName("tensorflow:Operation()._c_op")
USER_FRAMES = OptionalName("tensorflow.python.util._tf_stack:StackTrace.get_user_frames")

# Without it, TensorFlow looks for the graph in each step.
CALL_FLAT = OptionalName(
    "tensorflow.python.eager.polymorphic_function.concrete_function:"
    "ConcreteFunction._call_flat(self, tensor_inputs, captured_inputs)"
)

# A metric's variables are the same in all workers.
ADD_VARIABLE = Name(
    "keras:metrics.Metric.add_variable(self, shape, initializer, dtype, aggregation, name)"
)
METRICS_RESULT = Name("keras:Model.get_metrics_result(self)")
ASSIGN_ADD = Name("keras:Variable.assign_add(self, value)")

# Without these, the sum of a small tensor takes twice as many messages.
ALL_REDUCE = OptionalName(
    "tensorflow.python.distribute.cross_device_utils:"
    "CollectiveReplicaLauncher.all_reduce(self, input_tensor, control_input, options)"
)
ALL_GATHER = OptionalName(
    "tensorflow.python.distribute.cross_device_utils:"
    "CollectiveReplicaLauncher._all_gather(self, input_tensor, options)"
)

# All workers make a variable together, of any type.
CREATE_VARIABLE = Name(
    "tensorflow.python.distribute.collective_all_reduce_strategy:"
    "CollectiveAllReduceExtended._create_variable"
)
INITIAL_VALUE = Name(
    "tensorflow.python.distribute.collective_all_reduce_strategy:"
    "CollectiveAllReduceExtended._get_variable_creator_initial_value"
)

# One worker writes.
EXPORT = Name("keras:Model.export(self, filepath)")
SAVE_MODEL = Name("keras.src.saving.saving_lib:save_model(model, filepath)")
SAVE_WEIGHTS = Name("keras.src.saving.saving_lib:save_weights_only(model, filepath)")
SAVE_H5 = Name("keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5(model, filepath)")
REMOVE_BACKUP = Name("keras:callbacks.BackupAndRestore.on_train_end(self, logs)")
SKIPPED_ATTRIBUTES = Name("keras.src.saving.saving_lib:get_attr_skipset(obj_type)")

# `float(learning_rate)` works.
DISTRIBUTED_VARIABLE = Name("tensorflow.python.distribute.values:DistributedVariable")

# A dataset is looked through before it is split by rows.
INPUTS = Name("tensorflow:data.Dataset._inputs(self)")
FUNCTIONS = Name("tensorflow:data.Dataset._functions(self)")
GRAPH = Name("tensorflow:data.Dataset._as_serialized_graph")
PREFETCHED = Name("tensorflow.python.data.ops.prefetch_op:_PrefetchDataset")
DATASET = Name("tensorflow.python.data.ops.iterator_ops:OwnedIterator()._dataset")

# A dataset's rows are divided among the workers before its maps.
OPTIONS_DATASET = Name("tensorflow.python.data.ops.dataset_ops:_OptionsDataset")
MAP_DATASET = Name("tensorflow.python.data.ops.map_op:_MapDataset")
PARALLEL_MAP_DATASET = Name("tensorflow.python.data.ops.map_op:_ParallelMapDataset")
BATCH_DATASET = Name("tensorflow.python.data.ops.batch_op:_BatchDataset")
PARALLEL_BATCH_DATASET = Name("tensorflow.python.data.ops.batch_op:_ParallelBatchDataset")
TAKE_DATASET = Name("tensorflow.python.data.ops.take_op:_TakeDataset")
SKIP_DATASET = Name("tensorflow.python.data.ops.skip_op:_SkipDataset")
REPEAT_DATASET = Name("tensorflow.python.data.ops.repeat_op:_RepeatDataset")
COUNT = Name("tensorflow.python.data.ops.take_op:_TakeDataset()._count")
BATCH_SIZE = Name("tensorflow.python.data.ops.batch_op:_BatchDataset()._batch_size")
DROPS_REMAINDER = Name("tensorflow.python.data.ops.batch_op:_BatchDataset()._drop_remainder")
PARALLEL_CALLS = Name("tensorflow.python.data.ops.map_op:_ParallelMapDataset()._num_parallel_calls")
MAP_FUNCTION = Name("tensorflow.python.data.ops.map_op:_MapDataset()._map_func")
PYTHON_FUNCTION = Name(
    "tensorflow.python.data.ops.structured_function:StructuredFunctionWrapper()._func"
)

# If a worker fails or is lost, the collectives of the others end with an error that says why.
CONTEXT = Name("tensorflow.python.eager.context:context")
ABORT = Name("tensorflow.python.eager.context:Context.abort_collective_ops(self, code, message)")

# `fit` begins where it ended: BackupAndResume finds the data and the callbacks of the running fit,
# and moves the position in the data.
FIT_DATA = ResumeName("keras:Model.fit().epoch_iterator")
FIT_CALLBACKS = ResumeName("keras:Model.fit().callbacks")
ENUMERATE_ITERATOR = ResumeName(
    "keras.src.trainers.epoch_iterator:EpochIterator()._enumerate_iterator"
)
CATCH_STOP_ITERATION = ResumeName(
    "keras.src.trainers.epoch_iterator:EpochIterator.catch_stop_iteration(self)"
)
NUM_BATCHES = ResumeName("keras.src.trainers.epoch_iterator:EpochIterator()._num_batches")
STEPS_PER_EPOCH = ResumeName("keras.src.trainers.epoch_iterator:EpochIterator().steps_per_epoch")
ARRAYS_BATCH_SIZE = ResumeName(
    "keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter.batch_size"
)
GENERATOR = ResumeName(
    "keras.src.trainers.data_adapters.generator_data_adapter:GeneratorDataAdapter"
)
PY_DATASET = ResumeName("keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter")
INITIAL_EPOCH = ResumeName("keras:Model()._initial_epoch")
VALIDATION_DATA = ResumeName("keras:Model()._eval_epoch_iterator")
VALIDATES = ResumeName("keras:Model._should_eval(self, epoch, validation_freq)")
SYMBOLIC_BUILD = ResumeName("keras:Model._symbolic_build(self, iterator, data_batch)")

# The size of a dataset's batches, to convert the position if another number of workers resumes.
ORIGINAL_DATASET = ResumeName(
    "tensorflow.python.distribute.input_lib:DistributedDataset()._original_dataset"
)

# The generators of random numbers that a model does not hold.
GLOBAL_OF_KERAS = ResumeName("keras.src.backend.common.global_state:get_global_attribute(name)")
SEEDS_OF_KERAS = ResumeName("keras.src.random.seed_generator:global_seed_generator")
# Without it, random numbers that a resumed program draws eagerly begin anew.
EAGER_SEEDS = OptionalName("tensorflow.python.eager.context:Context()._rng")
# Without these, nobody is told that a step has a state that cannot be saved.
FUNCTION_NAMES = OptionalName("tensorflow.python.eager.context:Context.list_function_names(self)")
FUNCTION = OptionalName("tensorflow.python.eager.context:Context.get_function_def(self, name)")

# Without it, a rank that ends first leaves a traceback in the others' logs.
WATCH_KEY = OptionalName(
    "tensorflow:distribute.experimental.PreemptionCheckpointHandler._watch_step_to_save_key(self)"
)
# Without it, TensorFlow asks for 5 s whether this machine is in Google's cloud.
ON_GCP = OptionalName("tensorflow.python.distribute.failure_handling.failure_handling_util:on_gcp")
# Without it, TensorFlow ends a training if a task is silent for 5 to 10 s.
CONFIGURE_HEARTBEATS = OptionalName(
    "tensorflow.python.eager.context:"
    "Context.configure_coordination_service(self, service_type, service_leader, "
    "enable_health_check, cluster_register_timeout_in_ms, heartbeat_timeout_in_ms)"
)
# Without these, the error does not name the line that started TensorFlow before the strategy.
START = OptionalName("tensorflow.python.eager.context:Context.ensure_initialized(self)")
HAS_STARTED = OptionalName("tensorflow.python.eager.context:Context()._initialized")
# Without it, a resolver that comes too late to set the GPUs does not warn.
PHYSICAL_DEVICES = OptionalName("tensorflow.python.eager.context:Context()._physical_devices")
# Without it, functions of atexit that are older than this package's do not run after a save.
RUN_AT_EXIT = OptionalName("atexit:_run_exitfuncs")
# Without it, experimental_connect_to_cluster waits without end for servers that nobody starts.
SET_SERVER_DEF = OptionalName("tensorflow.python.eager.context:set_server_def(server_def)")
# Without these, a coordinator that has lost a worker may not end.
STOP_PREEMPTION = OptionalName(
    "tensorflow.python.distribute.coordinator.cluster_coordinator:"
    "WorkerPreemptionHandler.stop(self)"
)
UPDATE_OR_FINISH = OptionalName(
    "tensorflow.python.distribute.coordinator.cluster_coordinator:"
    "WorkerPreemptionHandler()._cluster_due_for_update_or_finish"
)
SHOULD_RUN = OptionalName(
    "tensorflow.python.distribute.coordinator.cluster_coordinator:"
    "WorkerPreemptionHandler()._should_preemption_thread_run"
)
