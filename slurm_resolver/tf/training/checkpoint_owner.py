"""Whose checkpoints a folder keeps: of which job, and of which model.

Another task of a job array, or another model, would go on from weights that are not its own. A new
job with the same model is how people go on with a training, on as many workers as they like.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from slurm_resolver.errors import ResumeError
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.keras.seeds import global_seed
from slurm_resolver.tf.training import training_identity
from slurm_resolver.tf.training.training_identity import check_same_training

FILE = "slurm_resolver.owner"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_KEY = "slurm_resolver/owner/.ATTRIBUTES/py_state"
_REMEDY = "Give each training a folder of its own, or remove this one to begin anew."


class Owner(NamedTuple):
    """Who has saved, or is about to.

    Attributes:
        job: the job's id; of a task of a job array the array's. None without Slurm.
        array_task: the number of the task of a job array.
        workers: how many workers train together; None where that was not noted.
        process: which process it is that writes.
        seed, layers: of the training, as `training_identity` tells them; None where that was not
            noted, and for the seed where the program has set none.
        restarts: how often the job, and then its step, was started again.
    """

    job: Optional[str] = None
    array_task: Optional[str] = None
    workers: Optional[int] = None
    process: Optional[str] = None
    seed: Optional[int] = None
    layers: Optional[Sequence[str]] = None
    restarts: Optional[int] = None

    def __str__(self) -> str:
        if self.array_task is not None:
            return f"task {self.array_task} of job array {self.job}"
        return f"job {self.job}" if self.job else f"process {self.process or '?'}, without Slurm"


class OwnerState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The owner in a checkpoint; reading that does not change who saves next."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def serialize(self) -> str:
        """Returns what is saved."""
        return json.dumps(self._owner._asdict())

    def deserialize(self, string_value: bytes) -> None:
        """Does nothing."""


def owner_of(step: SlurmStep, workers: int, state: Mapping[str, Any]) -> Owner:
    """Returns who this process is, and what it trains."""
    job = step.array_job_id or step.job_id
    process = f"{os.getpid()} on {socket.gethostname()}"
    layers = training_identity.describe(state)
    restarts = (step.restart_count or 0) + (step.step_restart or 0)
    return Owner(job, step.array_task_id, workers, process, global_seed(), layers, restarts)


def saved_by(reader: Any) -> Optional[Owner]:
    """Returns who has saved a checkpoint; None where an older version of this package has."""
    if not reader.has_tensor(_KEY):
        return None
    return _parse(reader.get_tensor(_KEY))


def check_training(path: str, found: Optional[Owner], owner: Owner) -> None:
    """Raises ResumeError where a checkpoint is of a training with other layers or another seed.

    A process that goes on with what it has saved itself may have set other seeds since then, and
    so may a job that was started again: a program that draws its seed must not fail by that.
    """
    if found is not None:
        again = found[:2] == owner[:2] and owner.job is not None and bool(owner.restarts)
        mine = found.process == owner.process or again
        seeds = (None, None) if mine else (found.seed, owner.seed)
        check_same_training(path, str(found), found.layers, owner.layers or (), seeds)


def claim(directory: str, owner: Owner) -> None:
    """Notes in the folder that this process writes there from now on. Only the first rank does.

    Two tasks of an array that begin together both find no checkpoint: one of them makes the file.

    Raises:
        ResumeError: where it belongs to another task of a job array.
    """
    if "://" in directory:  # where no file can be made by one of two
        return
    os.makedirs(directory, exist_ok=True)
    path, text = os.path.join(directory, FILE), json.dumps(owner._asdict())
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
        return
    except FileExistsError:
        check_task(directory, _read(path), owner)
    scratch = f"{path}.{os.getpid()}"
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(scratch, path)


def check_task(directory: str, found: Optional[Owner], owner: Owner) -> None:
    """Raises ResumeError where the folder is that of another task of a job array."""
    tasks = {found.array_task if found is not None else None, owner.array_task}
    if None not in tasks and len(tasks) > 1:
        raise ResumeError(
            f"the checkpoints in {directory!r} are those of {found}, and this is {owner}: one "
            "would end with the other's weights. Give each task a folder of its own, such as "
            f"{os.path.join(directory, '$SLURM_ARRAY_TASK_ID')}, or remove this one to begin anew."
        )


def check_still_owner(directory: str, owner: Owner) -> None:
    """Raises ResumeError where another process has taken over the folder since `claim`."""
    found = _read(os.path.join(directory, FILE))
    if found is not None and found.process != owner.process:
        raise ResumeError(
            f"{directory!r} has been taken over by {found} (process {found.process}), while "
            f"{owner} is still training: this one stops, so that they do not mix. "
            "Give each training a folder of its own."
        )


def check_model(path: str, reader: Any, checkpoint: tf.train.Checkpoint) -> None:
    """Checks that a checkpoint is one of these variables.

    Layers that are not yet built may be missing here, and what the program names anew there.

    Raises:
        ResumeError: where they differ; it names the first one that does.
    """
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    found = saved_by(reader)
    by = f", saved by {found}," if found is not None else ""
    error = f"{path}{by} is that of another model: {{}}. {_REMEDY}"
    match = _Match(TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH)), checkpoint)
    for pair in match.pairs:
        key, here = match.key(pair.node), pair.here
        if key not in shapes or not _is_variable(here):
            continue
        shape, dtype = tf.TensorShape(shapes[key]), dtypes[key]
        if not shape.is_compatible_with(here.shape) or tf.as_dtype(here.dtype) != dtype:
            there = f"{dtype.name} of shape {shape}"
            ours = f"{tf.as_dtype(here.dtype).name} of shape {here.shape}"
            raise ResumeError(error.format(f"{pair.path} is {there} there, and {ours} here"))
    if found is None:  # what an older version has let pass
        return
    for name in match.only_here():
        raise ResumeError(error.format(f"it has no {name}"))
    for name in match.only_there():
        raise ResumeError(error.format(f"it has {name}, which is not here"))


class _Pair(NamedTuple):
    """An object, and the node of a checkpoint's graph that it is restored from.

    Attributes:
        here: the object.
        node: the node's number.
        path: the names of the edges that lead there.
        built: whether what it belongs to has all its variables; Keras' layers tell it.
    """

    here: Any
    node: int
    path: str
    built: bool


class _Match:
    """The objects of a program beside a checkpoint's graph, matched as TensorFlow restores them."""

    def __init__(self, graph: Any, checkpoint: tf.train.Checkpoint) -> None:
        self._nodes = graph.nodes
        self._view = tf.train.TrackableView(checkpoint)
        self._seen = {id(checkpoint)}
        self.pairs = [_Pair(checkpoint, 0, "", False)]
        for pair in self.pairs:  # which grows
            nodes = self._children(pair.node)
            for name, child in self._view.children(pair.here).items():
                if name in nodes and id(child) not in self._seen:
                    self._seen.add(id(child))
                    path = f"{pair.path}/{name}".lstrip("/")
                    self.pairs.append(_Pair(child, nodes[name], path, _built(child, pair.built)))

    def key(self, node: int) -> Optional[str]:
        """Returns the key of a node's tensor; None where it has none."""
        found = [one.checkpoint_key for one in self._nodes[node].attributes if one.checkpoint_key]
        return found[0] if found else None

    def only_here(self) -> Iterator[str]:
        """Yields the variables that the checkpoint lacks, but for those at its top.

        There a program has something new, such as another argument of the loop.
        """
        others: List[Tuple[str, Any]] = []
        for pair in self.pairs[1:]:
            nodes = self._children(pair.node)
            for name, child in self._view.children(pair.here).items():
                if name not in nodes:
                    others.append((f"{pair.path}/{name}", child))
        for path, found in others:  # which grows
            if id(found) in self._seen:
                continue
            self._seen.add(id(found))
            others += [(f"{path}/{name}", one) for name, one in self._view.children(found).items()]
            if _is_variable(found):
                yield path

    def only_there(self) -> Iterator[str]:
        """Yields the variables of the checkpoint that an object lacks which is built."""
        matched = {pair.node for pair in self.pairs}
        others = [
            (f"{pair.path}/{name}", node)
            for pair in self.pairs
            if pair.built
            for name, node in self._children(pair.node).items()
        ]
        for path, node in others:  # which grows
            if node in matched:
                continue
            matched.add(node)
            others += [(f"{path}/{name}", child) for name, child in self._children(node).items()]
            if self.key(node) is not None:
                yield path

    def _children(self, node: int) -> Dict[str, int]:
        return {child.local_name: child.node_id for child in self._nodes[node].children}


def _built(found: Any, before: bool) -> bool:
    """Whether an object is built; one that does not tell, such as a list, is as what holds it."""
    told = getattr(found, "built", getattr(found, "_built", None))
    if told is None and hasattr(found, "apply_gradients"):
        return False
    return before if told is None else told is True


def _is_variable(found: Any) -> bool:
    return any(isinstance(one, tf.Variable) for one in (found, getattr(found, "value", None)))


def _read(path: str) -> Optional[Owner]:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return _parse(file.read())
    return None


def _parse(text: bytes) -> Optional[Owner]:
    """Returns an owner; None for what is none, as of a file that was cut off."""
    with contextlib.suppress(ValueError, AttributeError):
        told: Dict[str, Any] = json.loads(text)
        return Owner(**{name: told.get(name) for name in Owner._fields})
    return None
