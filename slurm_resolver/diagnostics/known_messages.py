"""The messages of TensorFlow, gRPC, CUDA and Slurm whose cause is known: one table."""

from __future__ import annotations

import re
from typing import NamedTuple


class KnownMessage(NamedTuple):
    """A message with its cause and its remedy.

    Attributes:
        cues: texts that are quick to search for, separated by `|`; every line with the message
            contains one.
        pattern: what such a line matches; without one, the cues are the pattern.
    """

    id: str
    cues: str
    cause: str
    remedy: str
    pattern: str = ""

    def search(self, text: str) -> re.Match[str] | None:
        """Returns where a line has the message; `re` compiles a pattern when it is first used."""
        return re.search(self.pattern or self.cues, text)


_CHECK = "Check names, ports and connections from all tasks: srun slurm-resolver check"
_FIRST = "Find the task that failed first; its log says why: srun --label --kill-on-bad-exit=1"
_SRUN = r"srun: error: (?P<address>[\w.,\[\]-]{1,200}: tasks? [\d,\[\]-]{1,200}): "


def _slurmstepd(reason: str) -> str:
    return rf"\*\*\* (?:JOB|STEP) \S{{1,60}} ON (?P<address>\S{{1,80}}) CANCELLED AT \S+{reason} \*"


# The first message that matches a line explains it: special messages precede general ones.
KNOWN_MESSAGES = (
    KnownMessage("fit-failed", " has failed in ",
        "The fit of this worker raised the error; the others stopped because of it.",
        "Correct that error. Its traceback is in that task's output: srun --label …",
        r"(?P<address>(?:chief|worker) \d{1,6}) has failed in (?:fit|evaluate|predict): "),
    KnownMessage("task-gone", " is gone",
        "The task ended before the training was over, or with an exception. The others stopped.",
        "Read the last lines of that task's output: srun --label …",
        r"(?P<address>[a-z_]{1,40} \d{1,6}) \(rank \d{1,6} on \S{1,255}\) is gone"),
    KnownMessage("task-not-started", " did not come to | did not come within ",
        "The task that the message names has not started, or ended before it met the others.",
        "Read its output, and compare the step's nodes: srun --label …, squeue --steps, sinfo -R"),
    KnownMessage("rendezvous-error", "RendezvousError: ",
        "The tasks did not meet, or do not agree; the message says which.", _CHECK),
    KnownMessage("task-restarted",
        "with a different incarnation|tried to connect while it is already",
        "The task ended and was started again while the others ran: it cannot join them again.",
        "Restart all tasks together, from a checkpoint: srun --kill-on-bad-exit=1 …"),
    KnownMessage("task-unhealthy", "stopped sending heartbeats|heartbeat timeout",
        "The task ended without disconnecting (crash, kill, sys.exit) or stopped responding; "
        "TensorFlow calls all of these crashed. It notices after about 10 seconds.",
        "Read the last lines of that task's log, and sacct -j JOBID -o JobID,State,ExitCode"),
    KnownMessage("leader-not-started", "failed to register with the leader",
        "The first task (worker 0 or chief) has not started, or cannot be reached from here.",
        "Read the first task's output. " + _CHECK),
    KnownMessage("leader-lost",
        "ailed to send RPC to coordination service|/tensorflow.CoordinationService/Heartbeat",
        "The first task (worker 0 or chief) has ended. It ran TensorFlow's coordination service.",
        "Read the last lines of the first task's output: srun --label …"),
    KnownMessage("barrier-failed", "Barrier timed out|Shutdown barrier|Barrier failed",
        "Some tasks reached a barrier and others did not: they ended, hang, or have more steps to "
        "do (unequal data).",
        "Give all tasks the same number of steps (repeat the data, set steps_per_epoch). "
        + _FIRST,
        "Barrier timed out|Shutdown barrier .{0,60}failed|Barrier failed"),
    KnownMessage("host-not-resolved",
        "errors resolving |Address lookup failed for |DNS resolution failed"
        "|Name or service not known|Temporary failure in name resolution",
        "A host name of the cluster has no address on this node.",
        "Compare `scontrol show hostnames` and `getent hosts NAME` on the node. node_address "
        "selects another interface. " + _CHECK,
        r"(?:errors resolving|Address lookup failed for|DNS resolution failed for) "
        r"(?P<address>[\w.-]{1,255}:\d{1,5})\b"
        r"|DNS resolution failed|Name or service not known|Temporary failure in name resolution"),
    KnownMessage("port-taken",
        "No address added out of total|Could not start gRPC server|Address already in use",
        "Another process on this node listens on the task's port.",
        "On the node, ss -ltnp shows it. Let Slurm reserve ports (srun --resv-ports), or set "
        "port_base.",
        r"No address added out of total \d+ resolved for '(?P<address>[^']{1,80})'"
        r"|No address added out of total|Could not start gRPC server|Address already in use"),
    KnownMessage("peer-refused", "Connection refused",
        "No process listens there yet: the task has not started, or ended while it started.",
        _CHECK,
        "[Ff]ailed to connect to (?:all addresses|remote host).{0,200}Connection refused"),
    KnownMessage("peer-unreachable",
        "ailed to connect to all addresses|ailed to connect to remote host",
        "The task's host does not answer, or no process listens there. The task may have ended, "
        "the node may be down, or a firewall may be in the way.",
        f"{_CHECK}. Nodes that are down: sinfo -R. Proxies: unset http_proxy https_proxy"),
    KnownMessage("peer-closed", "Socket closed|Connection reset by peer|Broken pipe|GOAWAY",
        "The connection was open, and the task at the other end has ended.", _FIRST,
        r"Socket closed|recvmsg:|(?:aborted by|UNAVAILABLE|grpc_message).{0,300}"
        r"(?:Connection reset by peer|Broken pipe|GOAWAY)"),
    KnownMessage("parameter-server-lost", "remote target /job:ps/",
        "A call to this parameter server failed: most often it has ended, with its variables.",
        "Restart from a checkpoint. Read its output, and sacct: it often ran out of memory."),
    KnownMessage("worker-lost", "Remote function on worker ",
        "ParameterServerStrategy waits for this worker or for a parameter server it reads from.",
        "A worker may return. If a parameter server has ended, restart from a checkpoint.",
        r"Remote function on worker \S{1,80} failed with Unavailable"),
    KnownMessage("peer-call-failed", "remote target /job:",
        "A call to this task failed. The lines beside it say why.", _FIRST),
    KnownMessage("session-waits", "CreateSession still waiting for response from worker",
        "The task has not started yet, or listens at another address.", _CHECK),
    KnownMessage("tasks-missing", " tasks to connect",
        "The first task waits without a time limit for tasks that have not started.",
        "The next lines name some of them. " + _CHECK,
        r"Waiting for [1-9]\d*/\d+ tasks to connect"),
    KnownMessage("deadline-exceeded", "DEADLINE_EXCEEDED|Deadline Exceeded|DeadlineExceededError",
        "A task did not answer in time: it hangs, is overloaded, or the network loses packets.",
        _FIRST),
    KnownMessage("workers-differ",
        "Shape mismatch in the collective instance|but got type 0 and data_type",
        "The workers do not run the same program: the model, the metrics or the data differ.",
        "Run the same program with the same arguments and data in all tasks; the strategy divides "
        "the data. fit of slurm_resolver.MultiWorkerMirroredStrategy names what differs.",
        r"Shape mismatch in the collective instance"
        r"|Collective instance \d+ expected type .{1,60} but got type"),
    KnownMessage("strategy-scope", "Mixing different tf.distribute.Strategy objects",
        "A variable of the model, its optimizer or a metric was created outside strategy.scope().",
        "Create and compile the model and its optimizer in `with strategy.scope():`."),
    KnownMessage("collective-aborted", "Collective ops is aborted by",
        "Another task failed during a collective operation.", _FIRST),
    KnownMessage("keras-3-fit", "Attempt to convert a value (PerReplica",
        "Keras 3 cannot fit() under TensorFlow's own multi-worker strategies.",
        "Use slurm_resolver.MultiWorkerMirroredStrategy; or leave the program as it is and start "
        "it with srun slurm-resolver exec --replace-strategy -- python …",
        r"Attempt to convert a value \(PerReplica"),
    KnownMessage("keras-3-fit-servers",
        "create_per_worker_dataset|Cannot get the cardinality of a dataset that is not built",
        "Keras 3 cannot fit() under TensorFlow's own ParameterServerStrategy.",
        "Use slurm_resolver.ParameterServerStrategy.",
        r"to pass this dataset to ClusterCoordinator\.create_per_worker_dataset"
        r"|Cannot get the cardinality of a dataset that is not built"),
    KnownMessage("strategy-too-late", "Collective ops must be configured at program startup",
        "The program used TensorFlow before it created the strategy: a tensor, a dataset, a model.",
        "Create the strategy right after the imports."),
    KnownMessage("job-without-strategy", "There is no id for task_type ",
        "MultiWorkerMirroredStrategy does not know this task's job: it has a chief and workers.",
        "Make all tasks workers (no jobs, or worker=-1). For parameter servers, use "
        "ParameterServerStrategy in the chief and sys.exit(resolver.serve()) in ps and worker.",
        r"There is no id for task_type '?(?P<address>\w{1,80})"),
    KnownMessage("tf-keras-missing",
        "No module named 'tf_keras'|do not have the tf_keras package installed"
        "|Keras cannot be imported. Check",
        "The program uses Keras 2, or TF_USE_LEGACY_KERAS asks for it, and tf_keras is missing.",
        "pip install 'tf_keras==2.21.*', with the 2.x of your TensorFlow; or unset "
        "TF_USE_LEGACY_KERAS to use Keras 3."),
    KnownMessage("tensorboard-missing", "TBNotInstalledError: |TensorBoard is not installed",
        "The program writes summaries (tf.summary or Keras' TensorBoard callback), and "
        "TensorBoard is not installed in its Python.",
        "pip install tensorboard, or remove the callback and the calls of tf.summary."),
    KnownMessage("no-gpu", "CUDA_ERROR_NO_DEVICE|no CUDA-capable device",
        "The task sees no GPU: Slurm granted none, or CUDA_VISIBLE_DEVICES is empty, as it should "
        "be for parameter servers.",
        "Ask Slurm for GPUs (srun --gpus-per-node=N). See who has them: srun slurm-resolver show"),
    KnownMessage("gpu-out-of-memory",
        "CUDA_ERROR_OUT_OF_MEMORY|failed to allocate |OOM when allocating|ran out of memory trying",
        "The GPU's memory is full: the batch is too large, or several tasks share the GPU and "
        "TensorFlow in the first of them took all of it.",
        "See which tasks share it: srun slurm-resolver show, nvidia-smi. Ask for as many GPUs as "
        "tasks (--gpus-per-node=N), use a smaller batch, or set TF_FORCE_GPU_ALLOW_GROWTH=true",
        "CUDA_ERROR_OUT_OF_MEMORY|failed to allocate .{1,80} (?:on|from) device"
        "|OOM when allocating|ran out of memory trying to allocate(?!.{0,200}not a failure)"),
    KnownMessage("gpu-used-twice", "Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "Two tasks use the same GPU, which NCCL does not allow.",
        "Ask for as many GPUs as tasks: srun --ntasks-per-node=N --gpus-per-node=N. The resolver "
        "then gives each task its own. See them: srun slurm-resolver show"),
    KnownMessage("gpu-libraries-missing", "Cannot dlopen some GPU libraries",
        "TensorFlow found no CUDA libraries, and runs without GPUs.",
        "pip install 'tensorflow[and-cuda]', or load the site's CUDA module before srun."),
    KnownMessage("time-limit", " DUE TO TIME LIMIT", "The job reached its time limit.",
        "Ask for more time (sbatch --time), or save on a signal before it: --signal=USR1@120",
        _slurmstepd(" DUE TO TIME LIMIT")),
    KnownMessage("preempted", " DUE TO PREEMPTION", "A job of higher priority took the nodes.",
        "Save checkpoints, and submit with sbatch --requeue.", _slurmstepd(" DUE TO PREEMPTION")),
    KnownMessage("node-failed", " DUE TO NODE FAILURE", "A node went down.",
        "sinfo -R names it. Restart from a checkpoint without it: --exclude=NODE",
        _slurmstepd(" DUE TO NODE FAILURE.{0,60}")),
    KnownMessage("ended-after-failure", " DUE TO TASK FAILURE",
        "A task failed, and srun --kill-on-bad-exit ended the others.", _FIRST,
        _slurmstepd(" DUE TO TASK FAILURE")),
    KnownMessage("cancelled", " CANCELLED AT ",
        "The step or job was cancelled by scancel, by Ctrl-C, or by srun after a task failed.",
        _FIRST, _slurmstepd("(?: DUE to SIGNAL [A-Za-z ]{1,40})?")),
    KnownMessage("out-of-memory", "Out Of Memory|oom_kill event|oom-kill event",
        "The task used more memory than Slurm granted the job, and the kernel killed it.",
        "sacct -j JOBID -o JobID,MaxRSS,ReqMem shows it. Ask for more: --mem or --mem-per-cpu",
        rf"{_SRUN}Out Of Memory|oom[_-]kill event"),
    KnownMessage("task-failed", "Exited with exit code", "The task's program ended with an error.",
        _FIRST, _SRUN + "Exited with exit code"),
    KnownMessage("task-crashed", "srun: error: ",
        "A signal ended the task: a crash; if Killed, scancel or a lack of memory.",
        "python -X faulthandler shows where; sacct -j JOBID -o JobID,State,ExitCode,MaxRSS",
        _SRUN + "(?:Killed|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating)"),
    KnownMessage("program-not-found", "execve(): ",
        "The program, or the interpreter in its first line (#!), does not exist on that node.",
        "Use a path that all nodes share, and activate the virtual environment before srun.",
        r"execve\(\): (?:bad interpreter\()?(?P<address>[^\s()]{1,200})\)?: No such file"),
    KnownMessage("command-not-found", ": command not found|: not found",
        "The shell does not find the program on this node: its environment is not active.",
        "Activate it in the batch file, before srun: source ~/venv/bin/activate, or module load …",
        r"(?:^|[ /])(?:\w{0,10}sh|slurm_script): (?:line )?\d+: (?P<address>\S{1,200}): "
        r"(?:command )?not found"),
)  # fmt: skip

# It replaces peer-refused in a log in which a line with TASKS_MET shows that all tasks had met.
PEER_ENDED = KnownMessage("peer-ended", "",
    "All tasks had started. The one at this address has ended, or listens at another address.",
    _FIRST)  # fmt: skip
TASKS_MET = re.compile(
    "StartAbort|Collective ops is aborted by|CoordinationService/Heartbeat"
    r"|Remote function on worker|Waiting for 0/\d+ tasks"
)
