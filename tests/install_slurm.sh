#!/bin/sh
# Installs what the tests on a real Slurm need and this machine lacks. It starts no daemon.
#
#     sh tests/install_slurm.sh [--if-possible]
#
# With --if-possible it asks for no password, and ends with status 0 without Slurm, so that the tests
# that need it are skipped.
set -eu

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # an ordinary user's PATH may lack these folders
missing=
programs="slurmctld slurmd srun sbatch salloc scontrol ip nsenter unshare shellcheck
    mpirun.openmpi mpirun.mpich munged munge unmunge iptables"
[ "${1:-}" = --if-possible ] || programs="$programs patchelf" # for make slurms
for program in $programs; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -z "$missing" ]; then
    echo "Slurm for the tests is installed: $(slurmctld -V)"
    exit 0
fi

as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
if [ "${1:-}" = --if-possible ]; then
    if ! command -v apt-get >/dev/null || ! ${as_root:+sudo -n} true 2>/dev/null; then
        echo "Missing:$missing. The tests that need these are skipped; \`make slurm\` installs" \
            "them on Debian and Ubuntu."
        exit 0
    fi
elif ! command -v apt-get >/dev/null; then
    echo "missing:$missing. This script installs Debian's packages only: install Slurm," >&2
    echo "iproute2, iptables, util-linux, shellcheck, munge, Open MPI and MPICH with this" >&2
    echo "system's own package manager." >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
$as_root apt-get install -q -y --no-install-recommends slurm-wlm iproute2 util-linux shellcheck \
    openmpi-bin mpich patchelf munge iptables
slurmctld -V
