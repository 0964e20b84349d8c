"""The messages of TensorFlow, gRPC, CUDA and Slurm whose cause is known: one table."""

from __future__ import annotations

import configparser
import re
from typing import NamedTuple


class KnownMessage(NamedTuple):
    """A message with its cause and its remedy.

    Attributes:
        cues: texts that are quick to search for, separated by `|`; every line with the message
            contains one.
        pattern: what such a line matches; by default the cues.
        follows: whether a task writes it because of another task, or of a connection to one.
    """

    id: str
    cues: str
    cause: str
    remedy: str
    pattern: str
    follows: bool


# The first message that matches a line explains it: special messages precede general ones.
# ${NAME} becomes a value of the first section. Lines of cues and patterns are joined without a
# space, and a space at the end of a pattern is [ ].
_TABLE = r"""
[DEFAULT]
pattern = ${cues}
follows = no
check = Check names, ports and connections from all tasks: srun slurm-resolver check
first = Find the task that failed first; its log says why: srun --label --kill-on-bad-exit=1
srun = srun: error: (?P<address>[\w.,\[\]-]{1,200}: tasks? [\d,\[\]-]{1,200}):
cancelled = \*\*\* (?:JOB|STEP) \S{1,60} ON (?P<address>\S{1,80}) CANCELLED AT \S+

[fit-failed]
cues = has failed in
cause = The fit of this worker raised the error; the others stopped because of it.
remedy = Correct that error. Its traceback is in that task's output: srun --label …
pattern = (?P<address>(?:chief|worker) \d{1,6}) has failed in (?:fit|evaluate|predict):[ ]
follows = yes

[task-gone]
cues = is gone
cause = The task ended before the training was over, or with an exception. The others stopped.
remedy = Read the last lines of that task's output: srun --label …
pattern = (?P<address>[a-z_]{1,40} \d{1,6}) \(rank \d{1,6} on \S{1,255}\) is gone
follows = yes

[task-not-started]
cues = did not come to | did not come within
cause = The task that the message names has not started, or ended before it met the others.
remedy = Read its output, and compare the step's nodes: srun --label …, squeue --steps, sinfo -R
pattern = [ ]did not come (?:to|within)[ ]
follows = yes

[rendezvous-error]
cues = RendezvousError:
cause = The tasks did not meet, or do not agree; the message says which.
remedy = ${check}
pattern = RendezvousError:[ ]
follows = yes

[task-restarted]
cues = with a different incarnation|tried to connect while it is already
cause = The task ended and was started again while the others ran: it cannot join them again.
remedy = Restart all tasks together, from a checkpoint: srun --kill-on-bad-exit=1 …
follows = yes

[task-unhealthy]
cues = stopped sending heartbeats|heartbeat timeout
cause = The task ended without disconnecting (crash, kill, sys.exit) or stopped responding;
    TensorFlow calls all of these crashed. It notices after about 10 seconds.
remedy = Read the last lines of that task's log, and sacct -j JOBID -o JobID,State,ExitCode
follows = yes

[leader-not-started]
cues = failed to register with the leader
cause = The first task (worker 0 or chief) has not started, or cannot be reached from here.
remedy = Read the first task's output. ${check}
follows = yes

[leader-lost]
cues = ailed to send RPC to coordination service|/tensorflow.CoordinationService/Heartbeat
cause = The first task (worker 0 or chief) has ended. It ran TensorFlow's coordination service.
remedy = Read the last lines of the first task's output: srun --label …
follows = yes

[barrier-failed]
cues = Barrier timed out|Shutdown barrier|Barrier failed
cause = Some tasks reached a barrier and others did not: they ended, hang, or have more steps to
    do (unequal data).
remedy = Give all tasks the same number of steps (repeat the data, set steps_per_epoch). ${first}
pattern = Barrier timed out|Shutdown barrier .{0,60}failed|Barrier failed
follows = yes

[host-not-resolved]
cues = errors resolving |Address lookup failed for |DNS resolution failed
    |Name or service not known|Temporary failure in name resolution
cause = A host name of the cluster has no address on this node.
remedy = Compare `scontrol show hostnames` and `getent hosts NAME` on the node. node_address
    selects another interface. ${check}
pattern = (?:errors resolving|Address lookup failed for
    |DNS resolution failed for) (?P<address>[\w.-]{1,255}:\d{1,5})\b|DNS resolution failed
    |Name or service not known|Temporary failure in name resolution

[port-taken]
cues = No address added out of total|Could not start gRPC server|Address already in use
cause = Another process on this node listens on the task's port.
remedy = On the node, ss -ltnp shows it. Let Slurm reserve ports (srun --resv-ports), or set
    port_base.
pattern = No address added out of total \d+ resolved for '(?P<address>[^']{1,80})'
    |No address added out of total|Could not start gRPC server|Address already in use

[peer-refused]
cues = Connection refused
cause = No process listens there yet: the task has not started, or ended while it started.
remedy = ${check}
pattern = [Ff]ailed to connect to (?:all addresses|remote host).{0,200}Connection refused
follows = yes

[peer-unreachable]
cues = ailed to connect to all addresses|ailed to connect to remote host
cause = The task's host does not answer, or no process listens there. The task may have ended, the
    node may be down, or a firewall may be in the way.
remedy = ${check}. Nodes that are down: sinfo -R. Proxies: unset http_proxy https_proxy
follows = yes

[peer-closed]
cues = Socket closed|Connection reset by peer|Broken pipe|GOAWAY
cause = The connection was open, and the task at the other end has ended.
remedy = ${first}
pattern = Socket closed|recvmsg:|(?:aborted by|UNAVAILABLE
    |grpc_message).{0,300}(?:Connection reset by peer|Broken pipe|GOAWAY)
follows = yes

[parameter-server-lost]
cues = remote target /job:ps/
cause = A call to this parameter server failed: most often it has ended, with its variables.
remedy = Restart from a checkpoint. Read its output, and sacct: it often ran out of memory.
follows = yes

[worker-lost]
cues = Remote function on worker
cause = ParameterServerStrategy waits for this worker or for a parameter server it reads from.
remedy = A worker may return. If a parameter server has ended, restart from a checkpoint.
pattern = Remote function on worker \S{1,80} failed with Unavailable
follows = yes

[peer-call-failed]
cues = remote target /job:
cause = A call to this task failed. The lines beside it say why.
remedy = ${first}
follows = yes

[session-waits]
cues = CreateSession still waiting for response from worker
cause = The task has not started yet, or listens at another address.
remedy = ${check}
follows = yes

[tasks-missing]
cues = tasks to connect
cause = The first task waits without a time limit for tasks that have not started.
remedy = The next lines name some of them. ${check}
pattern = Waiting for [1-9]\d*/\d+ tasks to connect
follows = yes

[deadline-exceeded]
cues = DEADLINE_EXCEEDED|Deadline Exceeded|DeadlineExceededError
cause = A task did not answer in time: it hangs, is overloaded, or the network loses packets.
remedy = ${first}
follows = yes

[workers-differ]
cues = Shape mismatch in the collective instance|but got type 0 and data_type
cause = The workers do not run the same program: the model, the metrics or the data differ.
remedy = Run the same program with the same arguments and data in all tasks; the strategy divides
    the data. fit of slurm_resolver.MultiWorkerMirroredStrategy names what differs.
pattern = Shape mismatch in the collective instance
    |Collective instance \d+ expected type .{1,60} but got type

[strategy-scope]
cues = Mixing different tf.distribute.Strategy objects
cause = A variable of the model, its optimizer or a metric was created outside strategy.scope().
remedy = Create and compile the model and its optimizer in `with strategy.scope():`.

[collective-aborted]
cues = Collective ops is aborted by
cause = Another task failed during a collective operation.
remedy = ${first}
follows = yes

[keras-3-fit]
cues = Attempt to convert a value (PerReplica
cause = Keras 3 cannot fit() under TensorFlow's own multi-worker strategies.
remedy = Use slurm_resolver.MultiWorkerMirroredStrategy; or leave the program as it is and start
    it with srun slurm-resolver exec --replace-strategy -- python …
pattern = Attempt to convert a value \(PerReplica

[keras-3-fit-servers]
cues = create_per_worker_dataset|Cannot get the cardinality of a dataset that is not built
cause = Keras 3 cannot fit() under TensorFlow's own ParameterServerStrategy.
remedy = Use slurm_resolver.ParameterServerStrategy.
pattern = to pass this dataset to ClusterCoordinator\.create_per_worker_dataset
    |Cannot get the cardinality of a dataset that is not built

[strategy-too-late]
cues = Collective ops must be configured at program startup
cause = The program used TensorFlow before it created the strategy: a tensor, a dataset, a model.
remedy = Create the strategy right after the imports.

[job-without-strategy]
cues = There is no id for task_type
cause = MultiWorkerMirroredStrategy does not know this task's job: it has a chief and workers.
remedy = Make all tasks workers (no jobs, or worker=-1). For parameter servers, use
    ParameterServerStrategy in the chief and sys.exit(resolver.serve()) in ps and worker.
pattern = There is no id for task_type '?(?P<address>\w{1,80})

[tf-keras-missing]
cues = No module named 'tf_keras'|do not have the tf_keras package installed
    |Keras cannot be imported. Check
cause = The program uses Keras 2, or TF_USE_LEGACY_KERAS asks for it, and tf_keras is missing.
remedy = pip install 'tf_keras==2.21.*', with the 2.x of your TensorFlow; or unset
    TF_USE_LEGACY_KERAS to use Keras 3.

[tensorboard-missing]
cues = TBNotInstalledError: |TensorBoard is not installed
cause = The program writes summaries (tf.summary or Keras' TensorBoard callback), and TensorBoard
    is not installed in its Python.
remedy = pip install tensorboard, or remove the callback and the calls of tf.summary.

[no-gpu]
cues = CUDA_ERROR_NO_DEVICE|no CUDA-capable device
cause = The task sees no GPU: Slurm granted none, or CUDA_VISIBLE_DEVICES is empty, as it should
    be for parameter servers.
remedy = Ask Slurm for GPUs (srun --gpus-per-node=N). See who has them: srun slurm-resolver show

[gpu-out-of-memory]
cues = CUDA_ERROR_OUT_OF_MEMORY|failed to allocate |OOM when allocating|ran out of memory trying
cause = The GPU's memory is full: the batch is too large, or several tasks share the GPU and
    TensorFlow in the first of them took all of it.
remedy = See which tasks share it: srun slurm-resolver show, nvidia-smi. Ask for as many GPUs as
    tasks (--gpus-per-node=N), use a smaller batch, or set TF_FORCE_GPU_ALLOW_GROWTH=true
pattern = CUDA_ERROR_OUT_OF_MEMORY|failed to allocate .{1,80} (?:on|from) device
    |OOM when allocating|ran out of memory trying to allocate(?!.{0,200}not a failure)

[gpu-used-twice]
cues = Duplicate GPU detected|Multiple Ranks are using the same GPU
cause = Two tasks use the same GPU, which NCCL does not allow.
remedy = Ask for as many GPUs as tasks: srun --ntasks-per-node=N --gpus-per-node=N. The resolver
    then gives each task its own. See them: srun slurm-resolver show

[gpu-libraries-missing]
cues = Cannot dlopen some GPU libraries
cause = TensorFlow found no CUDA libraries, and runs without GPUs.
remedy = pip install 'tensorflow[and-cuda]', or load the site's CUDA module before srun.

[time-limit]
cues = DUE TO TIME LIMIT
cause = The job reached its time limit.
remedy = Ask for more time (sbatch --time), or save on a signal before it: --signal=USR1@120
pattern = ${cancelled} DUE TO TIME LIMIT \*

[preempted]
cues = DUE TO PREEMPTION
cause = A job of higher priority took the nodes.
remedy = Save checkpoints, and submit with sbatch --requeue.
pattern = ${cancelled} DUE TO PREEMPTION \*

[node-failed]
cues = DUE TO NODE FAILURE
cause = A node went down.
remedy = sinfo -R names it. Restart from a checkpoint without it: --exclude=NODE
pattern = ${cancelled} DUE TO NODE FAILURE.{0,60} \*

[ended-after-failure]
cues = DUE TO TASK FAILURE
cause = A task failed, and srun --kill-on-bad-exit ended the others.
remedy = ${first}
pattern = ${cancelled} DUE TO TASK FAILURE \*

[cancelled]
cues = CANCELLED AT
cause = The step or job was cancelled by scancel, by Ctrl-C, or by srun after a task failed.
remedy = ${first}
pattern = ${cancelled}(?: DUE to SIGNAL [A-Za-z ]{1,40})? \*
follows = yes

[out-of-memory]
cues = Out Of Memory|oom_kill event|oom-kill event
cause = The task used more memory than Slurm granted the job, and the kernel killed it.
remedy = sacct -j JOBID -o JobID,MaxRSS,ReqMem shows it. Ask for more: --mem or --mem-per-cpu
pattern = ${srun} Out Of Memory|oom[_-]kill event

[task-failed]
cues = Exited with exit code
cause = The task's program ended with an error.
remedy = ${first}
pattern = ${srun} Exited with exit code

[task-crashed]
cues = srun: error:
cause = A signal ended the task: a crash; if Killed, scancel or a lack of memory.
remedy = python -X faulthandler shows where; sacct -j JOBID -o JobID,State,ExitCode,MaxRSS
pattern = ${srun} (?:Killed|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating)

[program-not-found]
cues = execve():
cause = The program, or the interpreter in its first line (#!), does not exist on that node.
remedy = Use a path that all nodes share, and activate the virtual environment before srun.
pattern = execve\(\): (?:bad interpreter\()?(?P<address>[^\s()]{1,200})\)?: No such file

[command-not-found]
cues = : command not found|: not found
cause = The shell does not find the program on this node: its environment is not active.
remedy = Activate it in the batch file, before srun: source ~/venv/bin/activate, or module load …
pattern = (?:^|[ /])(?:\w{0,10}sh
    |slurm_script): (?:line )?\d+: (?P<address>\S{1,200}): (?:command )?not found

[peer-ended]
cues =
cause = All tasks had started. The one at this address has ended, or listens at another address.
remedy = ${first}
follows = yes
"""
_SECTIONS = configparser.ConfigParser(interpolation=configparser.ExtendedInterpolation())
_SECTIONS.read_string(_TABLE)
_MESSAGES = {
    id: KnownMessage(
        id,
        section["cues"].replace("\n", ""),
        section["cause"].replace("\n", " "),
        section["remedy"].replace("\n", " "),
        section["pattern"].replace("\n", ""),
        section["follows"] == "yes",
    )
    for id, section in _SECTIONS.items()
    if id != "DEFAULT"
}
# It replaces peer-refused in a log in which a line with TASKS_MET shows that all tasks had met.
PEER_ENDED = _MESSAGES.pop("peer-ended")
KNOWN_MESSAGES = tuple(_MESSAGES.values())
TASKS_MET = re.compile(
    "StartAbort|Collective ops is aborted by|CoordinationService/Heartbeat"
    r"|Remote function on worker|Waiting for 0/\d+ tasks"
)
