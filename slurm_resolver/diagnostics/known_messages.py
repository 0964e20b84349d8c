"""The messages of TensorFlow, gRPC, CUDA and Slurm that tell why a distributed run went wrong.

One table, from the text in a log to the cause and the remedy.
"""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple, Optional, Pattern, Tuple

from slurm_resolver import errors


class KnownMessage(NamedTuple):
    """A message of a known meaning.

    Attributes:
        cues: texts that are quick to look for; every line with the message has one of them.
        pattern: what such a line matches.
        resolved: what a later line matches if the state that the message tells of has passed; that
            line has a cue as well.
    """

    id: str
    cues: Tuple[str, ...]
    pattern: Pattern[str]
    cause: str
    remedy: str
    resolved: Optional[Pattern[str]]


def _known(
    id: str, cues: str, cause: str, remedy: str, pattern: str = "", resolved: Optional[str] = None
) -> KnownMessage:
    """Returns the message; `cues` have | between them, and without a `pattern` a cue suffices."""
    texts = tuple(cues.split("|"))
    compiled = re.compile(pattern or "|".join(map(re.escape, texts)))
    return KnownMessage(
        id, texts, compiled, cause, remedy, re.compile(resolved) if resolved else None
    )


_CHECK = "Check names, ports and connections from all tasks: srun slurm-resolver check"
_FIRST = "Find out which task failed first; its own log says why: srun --label --kill-on-bad-exit=1"
_ENDED = "has ended, or was never started."
_SRUN = r"srun: error: (?P<address>[\w.,\[\]-]{1,200}: tasks? [\d,\[\]-]{1,200}): "


def _slurmstepd(reason: str) -> str:
    return rf"\*\*\* (?:JOB|STEP) \S{{1,60}} ON (?P<address>\S{{1,80}}) CANCELLED AT \S+{reason} \*"


def _own_error(error: type) -> KnownMessage:
    name = error.__name__
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
    cause = (inspect.getdoc(error) or "").partition("\n")[0]
    remedy = "The message names the variable or argument, its value and what was expected. "
    return _known(
        words, f"{name}: ", cause, remedy + "Look: srun slurm-resolver show", rf"\b{name}: "
    )


# The first message that matches a line explains it: special ones stand before general ones.
KNOWN_MESSAGES: Tuple[KnownMessage, ...] = (
    _known("fit-failed", " has failed in ",
        "The fit of this worker raised the error that follows, and ended that of all others.",
        "Mend that error; its traceback is in that task's own log: srun --label …",
        r"(?P<address>(?:chief|worker) \d{1,6}) has failed in (?:fit|evaluate|predict): "),
    *map(_own_error, filter(inspect.isclass, vars(errors).values())),
    _known("task-gone", " is gone",
        "The named task ended without saying goodbye, or with an exception; the others stopped.",
        "Look at the output of the named task: srun --label …",
        r"(?P<address>[a-z_]{1,40} \d{1,6}) \(rank \d{1,6} on \S{1,255}\) is gone"),
    _known("task-restarted", "with a different incarnation|tried to connect while it is already",
        "The task ended and was started again while the others ran on: it cannot join them again.",
        "Restart all tasks together, from a checkpoint: srun --kill-on-bad-exit=1 …"),
    _known("task-unhealthy", "stopped sending heartbeats|heartbeat timeout",
        "The task ended without disconnecting (crash, kill, sys.exit) or stopped responding; "
        "TensorFlow calls all of these crashed. It notices after about 10 seconds.",
        "Read the last lines of that task's log, and sacct -j JOBID -o JobID,State,ExitCode"),
    _known("leader-lost",
        "ailed to send RPC to coordination service|/tensorflow.CoordinationService/Heartbeat"
        "|failed to register with the leader",
        f"The first task (worker 0 or chief), which runs the coordination service, {_ENDED}",
        "Read the first task's own log. " + _CHECK),
    _known("barrier-failed", "Barrier timed out|Shutdown barrier|Barrier failed",
        "Some tasks reached a barrier, others did not: they have ended, hang, or have more steps "
        "to do (unequal data).",
        "Give all tasks the same number of steps (repeat the data, set steps_per_epoch). "
        + _FIRST,
        "Barrier timed out|Shutdown barrier .{0,60}failed|Barrier failed"),
    _known("host-not-resolved",
        "errors resolving |Address lookup failed for |DNS resolution failed"
        "|Name or service not known|Temporary failure in name resolution",
        "A host name of the cluster has no address on this node.",
        "Compare `scontrol show hostnames` and `getent hosts NAME` on the node; node_address names "
        "another interface. " + _CHECK,
        r"(?:errors resolving|Address lookup failed for|DNS resolution failed for) "
        r"(?P<address>[\w.-]{1,255}:\d{1,5})\b"
        r"|DNS resolution failed|Name or service not known|Temporary failure in name resolution"),
    _known("port-taken",
        "No address added out of total|Could not start gRPC server|Address already in use",
        "Another process on this node listens on the task's port: of another job, or left behind.",
        "On the node: ss -ltnp. Let Slurm reserve ports (srun --resv-ports), or give port_base.",
        r"No address added out of total \d+ resolved for '(?P<address>[^']{1,80})'"
        r"|No address added out of total|Could not start gRPC server|Address already in use"),
    _known("peer-refused", "Connection refused",
        f"No process listens there: the task {_ENDED}",
        f"{_FIRST}. If none failed, the tasks disagree on addresses: srun slurm-resolver check",
        "[Ff]ailed to connect to (?:all addresses|remote host).{0,200}Connection refused"),
    _known("peer-unreachable",
        "ailed to connect to all addresses|ailed to connect to remote host",
        "The task's host does not answer, or no process listens there: the task has ended, or a "
        "firewall, another network, a node that is down.",
        f"{_CHECK}. Nodes that are down: sinfo -R. Proxies: unset http_proxy https_proxy"),
    _known("peer-closed", "Socket closed|Connection reset by peer|Broken pipe|GOAWAY",
        "The connection was open, and the task at the other end ended.", _FIRST,
        r"Socket closed|recvmsg:|(?:aborted by|UNAVAILABLE|grpc_message).{0,300}"
        r"(?:Connection reset by peer|Broken pipe|GOAWAY)"),
    _known("parameter-server-lost", "remote target /job:ps/",
        f"A call to this parameter server failed: most often it {_ENDED} Its variables are lost.",
        "Restart from a checkpoint; read its log, and sacct: memory is the usual reason."),
    _known("worker-lost", "Remote function on worker ",
        "ParameterServerStrategy waits for this worker or for a parameter server it reads from.",
        "A worker may come back; a parameter server may not: then restart from a checkpoint.",
        r"Remote function on worker \S{1,80} failed with Unavailable"),
    _known("peer-call-failed", "remote target /job:",
        "A call to this task failed; the lines beside it say why.", _FIRST),
    _known("session-waits", "CreateSession still waiting for response from worker",
        "The task has not started yet, or listens at another address.", _CHECK),
    _known("tasks-missing", " tasks to connect",
        "The first task waits for others, without a time limit.",
        "The next lines name some of them. " + _CHECK,
        r"Waiting for [1-9]\d*/\d+ tasks to connect",
        resolved=r"Waiting for 0/\d+ tasks to connect"),
    _known("deadline-exceeded", "DEADLINE_EXCEEDED|Deadline Exceeded|DeadlineExceededError",
        "A task did not answer in time: it hangs, is overloaded, or the network loses packets.",
        _FIRST),
    _known("workers-differ",
        "Shape mismatch in the collective instance|but got type 0 and data_type",
        "The workers do not run the same program: another model, other metrics or other data.",
        "Let all tasks run the same program with the same arguments and data; the strategy shares "
        "the data out. fit of slurm_resolver.MultiWorkerMirroredStrategy names what differs.",
        r"Shape mismatch in the collective instance"
        r"|Collective instance \d+ expected type .{1,60} but got type"),
    _known("strategy-scope", "Mixing different tf.distribute.Strategy objects",
        "A variable was made outside strategy.scope(): the model's, its optimizer's or a metric's.",
        "Build and compile the model, and make its optimizer, in `with strategy.scope():`."),
    _known("collective-aborted", "Collective ops is aborted by",
        "Another task failed during a collective operation, which ended it here too.", _FIRST),
    _known("keras-3-fit", "Attempt to convert a value (PerReplica",
        "Keras 3 cannot fit() under TensorFlow's own multi-worker strategies.",
        "from slurm_resolver import MultiWorkerMirroredStrategy, and make that one; or, without a "
        "changed line, srun slurm-resolver exec --replace-strategy -- python …"),
    _known("keras-3-fit-servers",
        "create_per_worker_dataset|Cannot get the cardinality of a dataset that is not built",
        "Keras 3 cannot fit() under TensorFlow's own ParameterServerStrategy.",
        "from slurm_resolver import ParameterServerStrategy, and make that one.",
        r"to pass this dataset to ClusterCoordinator\.create_per_worker_dataset"
        r"|Cannot get the cardinality of a dataset that is not built"),
    _known("strategy-too-late", "Collective ops must be configured at program startup",
        "TensorFlow had been used before the strategy was made: a tensor, a dataset, a model.",
        "Make the strategy first of all, right after the imports, and all else after it."),
    _known("job-without-strategy", "There is no id for task_type ",
        "This task's job is none that MultiWorkerMirroredStrategy knows: it has chief and workers.",
        "Make all tasks workers (no jobs, or worker=-1); or, where parameter servers are meant, "
        "ParameterServerStrategy in the chief and sys.exit(resolver.serve()) in ps and worker.",
        r"There is no id for task_type '?(?P<address>\w{1,80})"),
    _known("tf-keras-missing",
        "No module named 'tf_keras'|do not have the tf_keras package installed"
        "|Keras cannot be imported. Check",
        "The program uses Keras 2, or TF_USE_LEGACY_KERAS asks for it, and tf_keras is missing.",
        "pip install 'tf_keras==2.21.*', of the same 2.x as TensorFlow; or unset "
        "TF_USE_LEGACY_KERAS, and use Keras 3."),
    _known("no-gpu", "CUDA_ERROR_NO_DEVICE|no CUDA-capable device",
        "The task sees no GPU: none was granted, or CUDA_VISIBLE_DEVICES is empty, as it should be "
        "for parameter servers.",
        "Ask Slurm for them (srun --gpus-per-node=N), and look: srun slurm-resolver show"),
    _known("gpu-out-of-memory",
        "CUDA_ERROR_OUT_OF_MEMORY|failed to allocate |OOM when allocating|ran out of memory trying",
        "The GPU's memory is full: the batch is too large, or several tasks share the GPU and "
        "TensorFlow in the first of them took all of it.",
        "See which tasks share it: srun slurm-resolver show, nvidia-smi. As many GPUs as tasks "
        "(--gpus-per-node=N), a smaller batch, or TF_FORCE_GPU_ALLOW_GROWTH=true",
        "CUDA_ERROR_OUT_OF_MEMORY|failed to allocate .{1,80} (?:on|from) device"
        "|OOM when allocating|ran out of memory trying to allocate(?!.{0,200}not a failure)"),
    _known("gpu-used-twice", "Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "Two tasks use the same GPU, which NCCL does not allow.",
        "As many GPUs as tasks: srun --ntasks-per-node=N --gpus-per-node=N, of which the resolver "
        "gives each task its own. Look: srun slurm-resolver show"),
    _known("gpu-libraries-missing", "Cannot dlopen some GPU libraries",
        "TensorFlow found no CUDA libraries and goes on without GPUs.",
        "pip install 'tensorflow[and-cuda]', or load the site's CUDA module before srun."),
    _known("time-limit", " DUE TO TIME LIMIT", "The job reached its time limit.",
        "Ask for a longer one (sbatch --time), or save on a signal before it: --signal=USR1@120",
        _slurmstepd(" DUE TO TIME LIMIT")),
    _known("preempted", " DUE TO PREEMPTION", "A job of higher priority took the nodes.",
        "Save checkpoints, and submit with sbatch --requeue.", _slurmstepd(" DUE TO PREEMPTION")),
    _known("node-failed", " DUE TO NODE FAILURE", "A node went down.",
        "sinfo -R names it; restart from a checkpoint without it: --exclude=NODE",
        _slurmstepd(" DUE TO NODE FAILURE.{0,60}")),
    _known("ended-after-failure", " DUE TO TASK FAILURE",
        "A task had failed, and srun --kill-on-bad-exit ended the others.", _FIRST,
        _slurmstepd(" DUE TO TASK FAILURE")),
    _known("cancelled", " CANCELLED AT ",
        "The step or job was cancelled: by scancel, Ctrl-C, or srun after another task failed.",
        _FIRST, _slurmstepd("(?: DUE to SIGNAL [A-Za-z ]{1,40})?")),
    _known("out-of-memory", "Out Of Memory|oom_kill event|oom-kill event",
        "The task used more main memory than the job was granted, and the kernel killed it.",
        "sacct -j JOBID -o JobID,MaxRSS,ReqMem; then ask for more: --mem or --mem-per-cpu",
        rf"{_SRUN}Out Of Memory|oom[_-]kill event"),
    _known("task-failed", "Exited with exit code", "The task's program ended with an error.",
        _FIRST, _SRUN + "Exited with exit code"),
    _known("task-crashed", "srun: error: ",
        "A signal ended the task: a crash, or, for Killed, scancel or a lack of memory.",
        "python -X faulthandler shows where; sacct -j JOBID -o JobID,State,ExitCode,MaxRSS",
        _SRUN + "(?:Killed|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating)"),
    _known("program-not-found", "execve(): ",
        "The program, or what its first line (#!) names, does not exist on that node.",
        "Use a path that all nodes share, and activate the virtual environment before srun.",
        r"execve\(\): (?:bad interpreter\()?(?P<address>[^\s()]{1,200})\)?: No such file"),
    _known("command-not-found", ": command not found|: not found",
        "The shell finds no such program on this node: the environment is not the one in which it "
        "is installed.",
        "Activate it in the batch file, before srun: source ~/venv/bin/activate, or module load …",
        r"(?:^|[ /])(?:\w{0,10}sh|slurm_script): (?:line )?\d+: (?P<address>\S{1,200}): "
        r"(?:command )?not found"),
)  # fmt: skip
