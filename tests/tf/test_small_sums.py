"""Small tensors are added up by a gather, large ones by TensorFlow's own sum."""

from __future__ import annotations

from pathlib import Path

from told_by_workers import told

# Numbers of which every order of adding has another sum.
SUMS = """
import tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
own = [1e8, 1.0, -1e8][strategy.cluster_resolver.task_id]

@tf.function
def summed(count, dtype):
    def of_replica():
        values = tf.fill([count], tf.cast(own, dtype))
        return tf.distribute.get_replica_context().all_reduce("sum", values)
    return strategy.run(of_replica)

for count, dtype in ((1, "float32"), (8192, "float32"), (8193, "float32"), (1, "bfloat16")):
    graph = summed.get_concrete_function(count, dtype).graph.as_graph_def()
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    names = [node.op for nodes in bodies for node in nodes if node.op.startswith("Collective")]
    print("told", dtype, count, *names, sorted(set(summed(count, dtype).numpy().tolist())))
"""


def test_tensors_of_up_to_32_kib_are_gathered_and_added_in_the_order_of_the_workers(
    tmp_path: Path,
) -> None:
    lines = told(SUMS, tmp_path, workers=3)
    assert [line for line in lines if "CollectiveGatherV2" in line] == [
        *["told float32 1 CollectiveGatherV2 [0.0]"] * 3,
        *["told float32 8192 CollectiveGatherV2 [0.0]"] * 3,
    ]
    by_ring = [line.split(" [")[0] for line in lines if "CollectiveReduceV2" in line]
    assert by_ring == [
        *["told bfloat16 1 CollectiveReduceV2"] * 3,
        *["told float32 8193 CollectiveReduceV2"] * 3,
    ]
