"""A signal to all processes of a step ends no process that the training has started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from keras_marks import KERAS_3
from local_run import captured, in_step

# Children of each kind, and one that was forked before the signal is handled.
STARTS = """\
import multiprocessing, os, signal, subprocess, threading, time
from concurrent.futures import ProcessPoolExecutor
from slurm_resolver import signals
from slurm_resolver.preemption.signal_watch import SignalWatch

def pool(kind):
    found = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(kind))
    found.submit(os.getpid).result()
    return found

signals.ignore_in_children()
pools = [pool("fork")]
watch = SignalWatch(("SIGUSR1", "SIGTERM"))
watch.arm()
thread = threading.Thread(target=lambda: pools.append(pool("spawn")))
thread.start()
thread.join()
pools += [pool("fork"), pool("spawn"), pool("forkserver")]
program = subprocess.Popen("cat", stdin=subprocess.PIPE)
os.killpg(0, signal.SIGUSR1)
while not watch.received:
    time.sleep(0.01)
print(watch.received, *[one.submit(len, "abc").result() for one in pools])
program.stdin.close()
print(program.wait())
ended = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
ended.start()
ended.terminate()
ended.join()
print(ended.exitcode)
"""


def test_children_of_every_kind_live_after_a_signal_and_end_when_asked_to() -> None:
    done = captured([sys.executable, "-c", STARTS], 0, start_new_session=True)
    assert (done.stdout, done.stderr) == ("SIGUSR1 3 3 3 3 3\n0\n-15\n", "")


@pytest.mark.parametrize("blocks", [False, True])
def test_without_a_handler_the_signal_ends_the_process_as_before(blocks: bool) -> None:
    script = "import os, signal, time; from slurm_resolver import signals\n"
    script += "signals.keep_from_children(signals.OF_USERS)\n" * blocks
    script += "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(60)"
    captured([sys.executable, "-c", script], -10)


LOSES_ITS_DATA = """\
import os, signal, sys, time
import tensorflow as tf
import slurm_resolver as sr

def fail(config):
    os.kill(os.getpid(), signal.SIGUSR1)
    while not config.watch.received:
        time.sleep(0.01)
    raise RuntimeError("no process that reads")

"""
LOOP = """\
config = sr.termination_config()
done = tf.Variable(0)
loop = sr.ResumableLoop(sys.argv[1], termination=config, done=done)

def data():
    for i in range(6):
        yield fail(config) if i == 3 and not loop.restored else i

for _ in loop.epochs(1):
    for batch in loop.batches(data()):
        done.assign_add(1)
print("ended", done.numpy())
"""
FIT = """\
import keras
resolver = sr.SlurmClusterResolver()
config = sr.termination_config(resolver)
strategy = sr.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
fails = sys.argv[2] == "fails" and not os.environ.get("SLURM_RESTART_COUNT")

def data():
    for i in range(8):
        if i == 5 and fails and hasattr(backup, "begun"):
            fail(config)
        yield [[float(i)]] * 4, [[1.0]] * 4

class Backup(sr.BackupAndResume):
    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        if epoch == 1:
            self.begun = True

with strategy.scope():
    keras.utils.set_random_seed(1)
    layers = [keras.Input((1,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
spec = [tf.TensorSpec([4, 1]), tf.TensorSpec([4, 1])]
dataset = tf.data.Dataset.from_generator(data, output_signature=tuple(spec))
backup = Backup(sys.argv[1], config)
history = model.fit(dataset, epochs=3, verbose=0, callbacks=[backup])
print("ended", [weight.tolist() for weight in model.get_weights()], history.history)
"""
FAILED = "after SIGUSR1, the training failed (RuntimeError: no process that reads"
SAVED = "it is saved as it was before this step"


@pytest.mark.tensorflow
def test_if_the_data_fail_after_a_signal_a_loop_is_saved(tmp_path: Path) -> None:
    program = [sys.executable, "-c", LOSES_ITS_DATA + LOOP, str(tmp_path)]
    first = captured(program, 75)
    assert FAILED in first.stderr
    assert SAVED in first.stderr
    assert "training saved at step 3 of epoch 1 because of SIGUSR1" in first.stderr
    assert captured(program, 0).stdout == "ended 6\n"


@pytest.mark.nightly
@pytest.mark.tensorflow
@KERAS_3
def test_if_the_data_fail_after_a_signal_a_fit_is_saved(tmp_path: Path) -> None:
    program = [sys.executable, "-c", LOSES_ITS_DATA + FIT]
    ends = {}
    for name in ("fails", "whole"):
        done = captured(
            in_step("-n 2 --requeue", *program, str(tmp_path / name), name),
            0,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        ends[name] = sorted(line for line in done.stdout.splitlines() if "ended" in line)
        assert (FAILED in done.stderr, SAVED in done.stderr) == (name == "fails",) * 2, done.stderr
    assert len(ends["fails"]) == 2
    assert ends["fails"] == ends["whole"]
