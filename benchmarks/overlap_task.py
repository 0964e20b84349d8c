"""A task of benchmarks/overlap.py: computes the steps of a model, sends gradients, or does both."""

from __future__ import annotations

from typing import Any, Callable

from variants import serve_variants

import slurm_resolver as sr


def prepare(
    port_base: int, what: str, layers: int, units: int, rows: int, bytes_per_pack: int
) -> Callable[[int], object]:
    """Returns a function that repeats a step, or a part of it.

    Args:
        port_base: the first port that the workers may use.
        what: "computing" trains alone on this worker's rows, "sending" adds up tensors as large as
            the gradients, and all others train with `fit` on the rows of both workers.
        layers: how many dense layers the model has.
        units: of each layer.
        rows: of each worker in a step.
        bytes_per_pack: of the CommunicationOptions.
    """
    import tensorflow as tf

    if what == "computing":
        return _fitting(tf.distribute.get_strategy(), layers, units, rows)
    communication = tf.distribute.experimental
    strategy = sr.MultiWorkerMirroredStrategy(
        cluster_resolver=sr.SlurmClusterResolver(port_base=port_base),
        communication_options=communication.CommunicationOptions(
            bytes_per_pack=bytes_per_pack,
            implementation=communication.CommunicationImplementation.RING,
        ),
    )
    if what == "sending":
        return _sending(strategy, layers, units)
    return _fitting(strategy, layers, units, rows * strategy.num_replicas_in_sync)


def _fitting(strategy: Any, layers: int, units: int, rows: int) -> Callable[[int], object]:
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with strategy.scope():
        dense = [keras.layers.Dense(units, "tanh", use_bias=False) for _ in range(layers)]
        model = keras.Sequential([keras.Input((units,)), *dense])
        model.compile("sgd", "mse")
    x = tf.random.stateless_normal([rows, units], [1, 2])
    batches = tf.data.Dataset.from_tensors((x, x)).repeat()

    def run_steps(times: int) -> None:
        model.fit(batches, steps_per_epoch=times, verbose=0)

    run_steps(1)  # traces the step and opens the connections
    return run_steps


def _sending(strategy: Any, layers: int, units: int) -> Callable[[int], object]:
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def add_up() -> Any:
        def replica() -> Any:
            gradients = [tf.ones([units, units]) for _ in range(layers)]
            context = tf.distribute.get_replica_context()
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return tf.add_n([one[0, 0] for one in sums])

        return strategy.run(replica)

    def run_steps(times: int) -> None:
        for _ in range(times):
            assert float(add_up()) == layers * strategy.num_replicas_in_sync

    run_steps(1)  # opens the connections
    return run_steps


if __name__ == "__main__":
    serve_variants(prepare, with_keras=True)
