#!/bin/sh
# Installs what the tests on a real Slurm need, where it is missing. Starts no daemon.
set -eu

missing=
for program in slurmctld slurmd srun sbatch salloc scontrol ip nsenter unshare; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
for program in shellcheck mpirun.openmpi mpirun.mpich patchelf munged munge unmunge; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -z "$missing" ]; then
    echo "Slurm for the tests is here: $(slurmctld -V)"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "missing:$missing. This script knows Debian's packages only: install Slurm," >&2
    echo "iproute2, util-linux, shellcheck, munge, Open MPI and MPICH with this system's own" >&2
    echo "package manager." >&2
    exit 1
fi
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
$as_root apt-get install -q -y --no-install-recommends slurm-wlm iproute2 util-linux shellcheck \
    openmpi-bin mpich patchelf munge
slurmctld -V
