#!/usr/bin/env bash
# Installs TensorFlow and this package into .venv, and trains two workers: `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
# Without NVIDIA's GPUs, tensorflow-cpu is enough: it is half as large, and exists for x86_64 only.
if command -v nvidia-smi >/dev/null || [ -d /proc/driver/nvidia ] || [ "$(uname -m)" != x86_64 ]; then
    tensorflow=tensorflow
else
    tensorflow="tensorflow-cpu"
fi
# The two packages contain the same files, so an installed one is kept.
for installed in .venv/lib/python3*/site-packages/tensorflow-[0-9]*; do
    [ ! -e "$installed" ] || tensorflow=tensorflow
done

# pip is not quiet, because the download takes minutes. Compiling all modules of TensorFlow would take
# another minute; Python compiles the few that are imported. This package is installed as a path to this
# folder: the default of setuptools doubles Python's start-up time.
if [ ! .venv/demo -nt setup.cfg ]; then
    case $tensorflow in
    tensorflow) size="640 MB to download, 2 GB" ;;
    *) size="340 MB to download, 1.5 GB" ;;
    esac
    echo "Installing $tensorflow and this package into .venv, and nothing outside it:"
    echo "$size on disk, one to three minutes."
    "$python" -m venv .venv
    if ! .venv/bin/python -m pip install --disable-pip-version-check --no-compile \
        --config-settings editable_mode=compat -e ".[$tensorflow]"; then
        echo >&2
        echo "The installation failed; the message of pip is above. If it found no TensorFlow, none" >&2
        echo "exists yet for $("$python" --version 2>&1). Use an older Python:" >&2
        echo "    rm -rf .venv; make demo PYTHON=python3.12" >&2
        exit 1
    fi
    touch .venv/demo
fi

echo "Two workers train together with the fit of Keras 3: half a minute."
# TensorFlow logs only errors here, so that the output can be read.
PATH=$PWD/.venv/bin:$PATH TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
    slurm-resolver run -n 2 -- python examples/quick_start/train.py
echo "Continue with the commands of README.md:  . .venv/bin/activate"
