"""The options of srun that a launcher on one machine cannot simulate, and what to do instead."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

_NODES = (
    "this is one node, localhost. Leave it out here; on Slurm give it to srun, and see the cluster "
    "beforehand with `slurm-resolver show --nodelist NODES`"
)
_ENFORCED = (
    "this command neither allocates resources nor limits their use. Leave it out here; on Slurm "
    "give it to srun"
)
_QUEUE = "there is no queue here. Leave it out here; on Slurm give it to srun, sbatch or salloc"
_DAEMONS = "Slurm's daemons and plugins do this. Leave it out here; on Slurm give it to srun"

_ADVICE = {
    _NODES: """
        -w --nodelist -x --exclude -F --nodefile -r --relative --ntasks-per-node --tasks-per-node
        --contiguous --switches --spread-job --use-min-nodes --het-group --pack-group -k --no-kill
        --cluster-constraint --segment --spread-segments --consolidate-segments
    """,
    _ENFORCED: """
        --mem --mem-per-cpu --mem-per-gpu --mem-bind --tmp --mincpus --gres --gres-flags
        --gpus-per-socket --gpu-freq --cpus-per-gpu --cpu-freq --sockets-per-node
        --cores-per-socket --threads-per-core -B --extra-node-info --ntasks-per-core
        --ntasks-per-socket --ntasks-per-gpu --ntasks-per-tres --hint -S --core-spec
        --thread-spec -O --overcommit -s --oversubscribe --overlap --exclusive --exact --whole
        --accel-bind --mem-update --resources
    """,
    _QUEUE: """
        -A --account -b --begin -C --constraint --comment -d --dependency --deadline --delay-boot
        -H --hold -I --immediate --jobid -L --licenses -M --clusters --cluster --mail-type
        --mail-user --mcs-label --nice -p --partition --power --priority -q --qos --reboot
        --reservation --time-min --test-only --wckey -Z --no-allocate --bb --bbf --prefer --extra
    """,
    _DAEMONS: """
        --acctg-freq --bcast --bcast-exclude --send-libs --compress --container --container-id
        --container-type --epilog --prolog --task-epilog --task-prolog --mpi --profile --propagate
        --pty --slurmd-debug -T --threads --treewidth --msg-timeout -X --disable-status
        --quit-on-interrupt --network --multi-prog --export --export-file -E --preserve-env
        -W --wait --async --parsable --interactive --external-launcher --stepmgr --context --x11
        --debugger-test
    """,
    "ports are always reserved here, one more than there are tasks. Leave it out": "--resv-ports",
    "`slurm-resolver completion` makes a shell complete this command's options": "--autocomplete",
}


class _CannotSimulate(argparse.Action):
    def __init__(self, *args: Any, advice: str, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._advice = advice

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: object = None,
    ) -> NoReturn:
        parser.error(f"srun's {option_string} cannot be simulated: {self._advice}.")


def add_options_only_for_slurm(parser: argparse.ArgumentParser) -> None:
    """Makes each of these options an error that says what to do; --help does not list them."""
    for advice, options in _ADVICE.items():
        parser.add_argument(
            *options.split(),
            action=_CannotSimulate,
            advice=advice,
            dest="only_for_slurm",
            nargs="?",
            help=argparse.SUPPRESS,
        )


def one_node(text: str) -> str:
    """Reads srun's --nodes, of which only 1 can be simulated."""
    if text not in ("1", "1-1"):
        raise argparse.ArgumentTypeError(f"{text}: {_NODES}.")
    return text


def no_input(text: str) -> str:
    """Reads srun's --input, of which only none can be simulated."""
    if text != "none":
        raise argparse.ArgumentTypeError(
            f"{text}: tasks read nothing here. Leave it out, or write none; on Slurm give it to "
            "srun."
        )
    return text
