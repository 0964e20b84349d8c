"""The messages of TensorFlow, gRPC, CUDA and Slurm whose cause is known: one table."""

from __future__ import annotations

import configparser
from typing import NamedTuple

from slurm_resolver.diagnostics.environment_messages import TABLE


class KnownMessage(NamedTuple):
    """A message with its cause and its remedy.

    Attributes:
        cues: texts that are quick to search for, separated by `|`; every line with the message
            contains one.
        pattern: what such a line matches; by default the cues.
        kind: "cause"; "request" (a cause that lies in what srun is asked for, and comes at each
            start); "hint" (a cause if the program has failed, and no harm otherwise); "effect" (a
            task writes it because of another task, or of a connection to one); "end" (how a task
            or the job has ended); "note" (it does no harm); "hidden" (no finding).
        hides: the ids and kinds of messages that say nothing beside this one, between spaces.
        settled: what a later line matches that settles it, such as a step that begins after it
            waited; it is then no finding.
    """

    id: str
    cues: str
    cause: str
    remedy: str
    pattern: str
    kind: str
    hides: str
    settled: str


# The first message that matches a line explains it: special messages precede general ones.
# ${NAME} becomes a value of the first section. Lines of cues and patterns are joined without a
# space, and a space at the end of a pattern is [ ].
_TABLE = r"""
[DEFAULT]
pattern = ${cues}
kind = cause
hides =
settled =
check = Check names, ports and connections from all tasks: srun slurm-resolver check
first = Find the task that failed first; its log says why: srun --label --kill-on-bad-exit=1
met = StartAbort|Collective ops is aborted by|CoordinationService/Heartbeat
    |Remote function on worker|Waiting for 0/\d+ tasks
memory = sacct -j JOBID -o JobID,MaxRSS,ReqMem shows it. Ask for more: --mem or --mem-per-cpu
srun = srun: error: (?P<address>[\w.,\[\]-]{1,200}: tasks? [\d,\[\]-]{1,200}):
at_line = \S ?: (?:[^\W\d]{1,10} )?\d{1,6} ?:
shell = (?:slurm_script|sh) ?: [^\W\d]{1,10} \d{1,6} ?:
cancelled = \*\*\* (?:JOB|STEP) \S{1,60} ON (?P<address>\S{1,80}) CANCELLED AT \S+

[saved]
cues = training saved|, restart |exit code 75
cause =
remedy =
pattern = training saved.{0,200} because of (?!.*(?:max_restarts|did not save))
    |(?:requeued|requeues it), restart \d|: Exited with exit code 75\b
kind = hidden
hides = effect end

[fit-failed]
cues = has failed in
cause = The fit of this worker raised the error; the others stopped because of it.
remedy = Correct that error. Its traceback is in that task's output: srun --label …
pattern = (?P<address>(?:chief|worker) \d{1,6}) has failed in (?:fit|evaluate|predict):[ ]
kind = effect

[task-silent]
cues = no answer for |has not answered for
cause = The process of this task does not answer, although its node does: it is stopped (SIGSTOP, a
    suspended job), or hangs in C code, most often for a file system or a GPU.
remedy = On its node, ps -u $$USER -o pid,stat,wchan:30,args shows T for stopped, and D for a
    process that waits in the kernel: then leave the node out (--exclude), and tell the site.
pattern = no answer for \d{1,9} s from (?P<address>[^:]{1,80}):|its process has not answered for[ ]
kind = hint

[task-gone]
cues = is gone
cause = The task ended before the training was over, or with an exception. The others stopped.
remedy = Read the last lines of that task's output: srun --label …
pattern = (?P<address>[a-z_]{1,40} \d{1,6}) \(rank \d{1,6} on \S{1,255}\) is gone
kind = effect

[tasks-awaited]
cues = has waited
cause = These tasks had not met the others by then: they start late, have ended, or do not reach
    the first task.
remedy = Read their output, and compare the step's nodes: srun --label …, squeue --steps, sinfo -R
pattern = has waited \d{1,9} s for \d{1,9} of \d{1,9} tasks: (?P<address>[^:]{1,80})
kind = hint
settled = ${met}|Epoch \d

[task-not-started]
cues = did not reach | did not start within
cause = The task that the message names has not started, or ended before it met the others.
remedy = Read its output, and compare the step's nodes: srun --label …, squeue --steps, sinfo -R
pattern = [ ]did not (?:reach .{1,80}|start) within[ ]
kind = effect

[second-strategy]
cues = this process has a strategy already|, the only task of its step, cannot listen
cause = TensorFlow starts only one server per process and port: a second strategy in the program,
    or a second program in the task, such as a notebook, cannot start its own.
remedy = Create the strategy once, before any loop, and each model in its scope. A second program
    trains alone with SLURM_RESOLVER=off, or takes another port_base.

[rendezvous-error]
cues = RendezvousError:
cause = The tasks did not meet, or do not agree; the message says which.
remedy = ${check}
pattern = RendezvousError:[ ]
kind = effect

[task-restarted]
cues = with a different incarnation|tried to connect while it is already
cause = The task ended and was started again while the others ran: it cannot join them again.
remedy = Restart all tasks together, from a checkpoint: srun --kill-on-bad-exit=1 …
kind = effect

[task-unhealthy]
cues = stopped sending heartbeats|heartbeat timeout
cause = The task ended without disconnecting (crash, kill, sys.exit) or stopped responding;
    TensorFlow calls all of these crashed. It notices after 10 to 120 seconds.
remedy = Read the last lines of that task's log, and sacct -j JOBID -o JobID,State,ExitCode
kind = effect

[leader-not-started]
cues = failed to register with the leader
cause = The first task (worker 0 or chief) has not started, or cannot be reached from here.
remedy = Read the first task's output. ${check}
kind = effect

[leader-lost]
cues = ailed to send RPC to coordination service|/tensorflow.CoordinationService/Heartbeat
cause = The first task (worker 0 or chief) has ended. It ran TensorFlow's coordination service.
remedy = Read the last lines of the first task's output: srun --label …
kind = effect

[barrier-failed]
cues = Barrier timed out|Shutdown barrier|Barrier failed
cause = Some tasks reached a barrier and others did not: they ended, hang, or have more steps to
    do (unequal data).
remedy = Give all tasks the same number of steps (repeat the data, set steps_per_epoch). ${first}
pattern = Barrier timed out|Shutdown barrier .{0,60}failed|Barrier failed
kind = effect

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

[start-timeout]
cues = Timeout (0:
cause = The process waited without end, and printed where. In the start of a strategy: TensorFlow
    does not reach the other tasks, because a firewall drops its port or a proxy takes its
    connections.
remedy = ${check}. unset http_proxy https_proxy, or name the nodes in no_proxy. Ask the site which
    ports are open between nodes: port_base, or srun --resv-ports
pattern = Timeout \(0:\d\d:\d\d\)!

[peer-refused]
cues = Connection refused
cause = No process listens there: the task has ended, has not started yet, or has another address.
remedy = ${first}. If none has failed: ${check}
pattern = [Ff]ailed to connect to (?:all addresses|remote host).{0,200}Connection refused
kind = effect

[peer-unreachable]
cues = ailed to connect to all addresses|ailed to connect to remote host
cause = The task's host does not answer, or no process listens there. The task may have ended, the
    node may be down, or a firewall may be in the way.
remedy = ${check}. Nodes that are down: sinfo -R. Proxies, if the program does not use this
    package: unset http_proxy https_proxy
kind = effect

[peer-closed]
cues = Socket closed|Connection reset by peer|Broken pipe|GOAWAY
cause = The connection was open, and the task at the other end has ended.
remedy = ${first}
pattern = Socket closed|recvmsg:|(?:aborted by|UNAVAILABLE
    |grpc_message).{0,300}(?:Connection reset by peer|Broken pipe|GOAWAY)
kind = effect

[parameter-server-lost]
cues = remote target /job:ps/
cause = A call to this parameter server failed: most often it has ended, with its variables.
remedy = Restart from a checkpoint. Read its output, and sacct: it often ran out of memory.
kind = effect

[worker-lost]
cues = Remote function on worker
cause = ParameterServerStrategy waits for this worker, or for a parameter server it reads from.
remedy = A worker may return. If a parameter server has ended, restart from a checkpoint.
pattern = Remote function on worker \S{1,80} failed with Unavailable
kind = effect

[peer-call-failed]
cues = remote target /job:
cause = A call to this task failed. The lines beside it say why.
remedy = ${first}
kind = effect

[session-waits]
cues = CreateSession still waiting for response from worker
cause = The task has not started yet, or listens at another address.
remedy = ${check}
kind = effect

[tasks-missing]
cues = tasks to connect
cause = The first task waits without a time limit for tasks that have not started.
remedy = The next lines name some of them. ${check}
pattern = Waiting for [1-9]\d*/\d+ tasks to connect
kind = effect
settled = ${met}

[deadline-exceeded]
cues = DEADLINE_EXCEEDED|Deadline Exceeded|DeadlineExceededError
cause = A task did not answer in time: it hangs, is overloaded, or the network loses packets.
remedy = ${first}
kind = effect

[workers-differ]
cues = Shape mismatch in the collective instance|but got type 0 and data_type
cause = The workers do not run the same program: the model, the metrics or the data differ.
remedy = Run the same program with the same arguments and data in all tasks; the strategy divides
    the data. fit under slurm_resolver.MultiWorkerMirroredStrategy names what differs.
pattern = Shape mismatch in the collective instance
    |Collective instance \d+ expected type .{1,60} but got type

[strategy-scope]
cues = Mixing different tf.distribute.Strategy objects
cause = A variable of the model, its optimizer or a metric was created outside strategy.scope().
remedy = Create and compile the model and its optimizer in `with strategy.scope():`.

[devices-differ]
cues = joining a group with incompatible device type
cause = Some workers compute on GPUs and others on CPUs: at least one does not see its GPU.
remedy = srun slurm-resolver show names the tasks without GPUs; earlier lines of their logs say why.
    Ask for GPUs on all nodes: srun --gpus-per-node=N
hides = collective-aborted

[collective-aborted]
cues = Collective ops is aborted by
cause = Another task failed during a collective operation.
remedy = ${first}
kind = effect

[keras-3-fit]
cues = Attempt to convert a value (PerReplica
cause = Keras 3's fit() fails under TensorFlow's own multi-worker strategies.
remedy = Use slurm_resolver.MultiWorkerMirroredStrategy; or leave the program as it is and start
    it with srun slurm-resolver exec --replace-strategy -- python …
pattern = Attempt to convert a value \(PerReplica

[keras-3-fit-servers]
cues = create_per_worker_dataset|Cannot get the cardinality of a dataset that is not built
cause = Keras 3's fit() fails under TensorFlow's own ParameterServerStrategy.
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

[out-of-data]
cues = input ran out of data|End of sequence
cause = The data has fewer batches than the training asks for. fit ends early; in a loop of your
    own, the other workers wait for the one without data.
remedy = Repeat the data (dataset.repeat()), or ask for fewer steps: steps_per_epoch counts global
    batches, not those of each worker.
pattern = input ran out of data|OutOfRangeError: .{0,80}End of sequence

[dataset-too-small]
cues = enough elements in this dataset for each shard|Found an unshardable source dataset
cause = TensorFlow cannot divide this dataset among the workers by its files.
remedy = options = tf.data.Options(); options.experimental_distribute.auto_shard_policy =
    tf.data.experimental.AutoShardPolicy.DATA; dataset = dataset.with_options(options)
pattern = enough elements in this dataset for each shard
    |(?:^ *(?:\d{1,7}: ?)?|errors_impl\.\w{1,40}Error: .{0,80})Found an unshardable source dataset

[dataset-unshardable]
cues = Found an unshardable source dataset|Did not find a shardable source
    |AUTO sharding policy will apply DATA
cause = The dataset does not read files. TensorFlow divides its elements instead, so every
    worker reads all of them. This is not an error; the dump below it describes the dataset.
remedy = AutoShardPolicy.DATA in the dataset's options has the same effect, without the message.
    In fit under slurm_resolver.MultiWorkerMirroredStrategy, each worker applies the maps directly
    before batch to its own rows only.
kind = note

[gpu-busy]
cues = CUDA_ERROR_DEVICE_UNAVAILABLE|busy or unavailable
cause = Another process uses this GPU, which allows only one (exclusive mode): two tasks have the
    same GPU, or a process of an earlier job still runs.
remedy = Ask for as many GPUs as tasks: srun --ntasks-per-node=N --gpus-per-node=N. See who has
    which: srun slurm-resolver show. nvidia-smi on the node shows mode and processes.
hides = task-crashed

[gpu-driver]
cues = does not match DSO version|CUDA driver version is insufficient
    |forward compatibility was|CUDA_ERROR_UNSUPPORTED_PTX|Driver/library version mismatch
    |CUDA_ERROR_SYSTEM_|CUDA_ERROR_COMPAT_|CUDA_ERROR_UNKNOWN
cause = The node's NVIDIA driver does not fit its libraries, or CUDA's version, or is not ready.
remedy = nvidia-smi on the node shows the driver. If other nodes work, leave this one out
    (--exclude=NODE) and tell the site; else install a TensorFlow for an older CUDA.
pattern = does not match DSO version|CUDA driver version is insufficient
    |forward compatibility was attempted|Driver/library version mismatch
    |CUDA_ERROR_(?:SYSTEM_|COMPAT_|UNKNOWN|UNSUPPORTED_PTX)

[gpu-wrong-number]
cues = invalid device ordinal|CUDA_ERROR_INVALID_DEVICE
cause = The task asks for a GPU that it does not see: CUDA_VISIBLE_DEVICES, or a number in the
    program, does not fit the GPUs that Slurm granted.
remedy = Leave CUDA_VISIBLE_DEVICES to Slurm and slurm_resolver: srun slurm-resolver show. Within a
    task, the GPUs are numbered from 0.

[gpu-broken]
cues = CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC error|GPU is lost|fallen off the bus
    |CUDA_ERROR_NVLINK|CUDA_ERROR_HARDWARE
cause = The GPU or its link is broken.
remedy = Leave the node out (--exclude=NODE, or slurm-resolver supervise), and tell the site.
hides = task-crashed

[gpu-kernel-failed]
cues = CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_LAUNCH_FAILED|CUDA_ERROR_MISALIGNED
    |illegal memory access was encountered|unspecified launch failure
cause = A computation on the GPU crashed: a fault of an operation, or of the GPU.
remedy = If it is the same node each time, leave it out (--exclude=NODE). Otherwise, find the
    operation with CUDA_LAUNCH_BLOCKING=1, and without jit_compile.
hides = task-crashed

[gpu-compiles]
cues = not built with CUDA kernel binaries compatible
cause = This TensorFlow was not built for this model of GPU, and compiles its operations at the
    start. This may take half an hour, and may fail.
remedy = If it fails: NVIDIA's container (nvcr.io/nvidia/tensorflow), a TensorFlow that was built
    for this GPU, or other GPUs (--gpus-per-node=TYPE:N). CUDA_CACHE_PATH on a disk that all nodes
    share keeps what was compiled.
kind = hint

[gpu-too-new]
cues = no kernel image is available|CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_INVALID_PTX
    |device kernel image is invalid|sm_
cause = This TensorFlow was not built for this model of GPU.
remedy = python -c 'import tensorflow as tf; print(tf.sysconfig.get_build_info())' shows for which
    ones. The wheel of TensorFlow 2.21 is for compute capabilities 6.0 to 9.0: for a newer GPU, use
    a newer TensorFlow that names it, or NVIDIA's container (nvcr.io/nvidia/tensorflow). For an
    older GPU, install an older TensorFlow. Or ask for other GPUs: --gpus-per-node=TYPE:N
pattern = no kernel image is available|CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_INVALID_PTX
    |device kernel image is invalid|'sm_\d{2,3}\w?' is not (?:defined|a recognized processor)
hides = task-crashed

[cudnn-version]
cues = Loaded runtime CuDNN library|CUDNN_STATUS_VERSION_MISMATCH|CUDNN_STATUS_SUBLIBRARY
cause = TensorFlow loads a cuDNN other than the one it was built with: LD_LIBRARY_PATH, set by a
    module or conda, finds it first.
remedy = Use one cuDNN. With tensorflow[and-cuda]: unload the site's CUDA and cuDNN modules, and
    unset LD_LIBRARY_PATH before srun. Else load the version that the message names.
pattern = Loaded runtime CuDNN library: \S{1,20} but source was compiled with
    |CUDNN_STATUS_(?:VERSION_MISMATCH|SUBLIBRARY)
hides = task-crashed

[gpu-library-failed]
cues = CUDNN_STATUS_|CUBLAS_STATUS_|cublas handle|cuDNN failed to initialize|DNN library
cause = cuDNN or cuBLAS did not start: another task or job has filled the GPU's memory, or the
    library does not fit TensorFlow.
remedy = Look at the GPU's memory (nvidia-smi) and at who shares it (srun slurm-resolver show). Ask
    for as many GPUs as tasks, or set TF_FORCE_GPU_ALLOW_GROWTH=true
pattern = CU(?:DNN|BLAS)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|ALLOC_FAILED)
    |failed to create cublas handle|cuDNN failed to initialize|DNN library (?:is not found|init)
hides = task-crashed

[libdevice-missing]
cues = libdevice not found|libdevice is required|find libdevice directory|JIT compilation failed
cause = XLA compiles for the GPU, and does not find CUDA's libdevice.
remedy = export XLA_FLAGS=--xla_gpu_cuda_data_dir=FOLDER before srun; FOLDER contains
    nvvm/libdevice, as the site's CUDA does. On x86_64, pip install 'tensorflow[and-cuda]' brings
    it.

[nccl-memory]
cues = ibv_
cause = NCCL or UCX cannot use InfiniBand: the limit of locked memory is too low for it, or a
    container does not have its devices.
remedy = srun bash -c 'ulimit -l' has to print unlimited in each task: if it does not, ask the site
    to set LimitMEMLOCK of slurmd. Until then NCCL_IB_DISABLE=1 makes NCCL use the slower IP
    network.
pattern = ibv_\w{1,40}(?:\(\))? failed

[nccl-shared-memory]
cues = shared memory segment|/dev/shm/nccl
cause = NCCL has no room in /dev/shm, which is small in many containers.
remedy = Start the container with a larger /dev/shm, or set NCCL_SHM_DISABLE=1, which is slower.
pattern = (?:creating|attaching to|extend) shared memory segment|/dev/shm/nccl.{0,100}No space left

[nccl-network]
cues = no socket interface found|No route to host|NCCL WARN
cause = NCCL does not reach the other nodes over the network that it has chosen.
remedy = NCCL_DEBUG=INFO shows the interface; NCCL_SOCKET_IFNAME chooses another, such as ib0.
pattern = no socket interface found
    |NCCL WARN .{0,200}(?:No route to host|Connection (?:timed out|refused)|retries exceeded)
    |NCCL WARN NET/IB ?: Got completion .{0,200}(?:error|status=)

[nccl-peer-lost]
cues = remote process exited|by remote peer
cause = NCCL has lost another task, which has ended or cannot be reached.
remedy = ${first}
pattern = remote process exited or there was a network error|Connection closed by remote peer
kind = effect

[nccl-failed]
cues = NCCL: |unhandled system error|unhandled cuda error|NCCL WARN Cuda failure
    |ncclInternalE|ncclSystemE|ncclRemoteE|ncclUnhandledCudaE
cause = NCCL, which adds up the gradients on GPUs, failed. The lines with NCCL WARN say why.
remedy = Run it with NCCL_DEBUG=WARN. Without NCCL, the gradients use the slower gRPC: give the
    strategy tf.distribute.experimental.CommunicationOptions with implementation=RING
pattern = NCCL: |unhandled (?:system|cuda) error|NCCL WARN Cuda failure
    |nccl(?:Internal|System|Remote|UnhandledCuda)Error
hides = task-crashed

[no-gpu]
cues = CUDA_ERROR_NO_DEVICE|no CUDA-capable device|was not registered
cause = The task sees no GPU: Slurm granted none, or CUDA_VISIBLE_DEVICES is empty, as it should
    be for parameter servers.
remedy = Ask Slurm for GPUs (srun --gpus-per-node=N). See who has them: srun slurm-resolver show
pattern = CUDA_ERROR_NO_DEVICE|no CUDA-capable device
settled = TensorFlow device GPU:\d+ was not registered
kind = hint

[host-out-of-memory]
cues = OOM when allocating|MemoryError|std::bad_alloc|Unable to allocate |annot allocate memory
cause = The program asked for more of the node's memory than Slurm granted, or than the node has.
remedy = ${memory}. Smaller batches, prefetch and shuffle buffers need less.
pattern = OOM when allocating.{1,400}device:CPU|(?:^|[\s.])_?(?:Array)?MemoryError(?::|\s*$$)
    |std::bad_alloc|Unable to allocate [\d.]{1,10} [KMGTP]?i?B|[Cc]annot allocate memory
hides = task-crashed

[gpu-out-of-memory]
cues = CUDA_ERROR_OUT_OF_MEMORY|failed to allocate |OOM when allocating|ran out of memory trying
    |Out of memory while trying to allocate|out of memory
cause = The GPU's memory is full: the batch is too large, or several tasks share the GPU and
    TensorFlow in the first of them took all of it.
remedy = See which tasks share it: srun slurm-resolver show, nvidia-smi. Ask for as many GPUs as
    tasks (--gpus-per-node=N), use a smaller batch, or set TF_FORCE_GPU_ALLOW_GROWTH=true
pattern = CUDA_ERROR_OUT_OF_MEMORY|failed to allocate .{1,80} (?:on|from) device
    |OOM when allocating|ran out of memory trying to allocate(?!.{0,200}not a failure)
    |Out of memory while trying to allocate|[Cc](?:uda|UDA).{0,80}out of memory

[gpu-used-twice]
cues = Duplicate GPU detected|Multiple Ranks are using the same GPU
cause = Two tasks use the same GPU, which NCCL does not allow.
remedy = Ask for as many GPUs as tasks: srun --ntasks-per-node=N --gpus-per-node=N. The resolver
    then gives each task its own. See them: srun slurm-resolver show

[gpu-libraries-missing]
cues = Cannot dlopen some GPU libraries
cause = TensorFlow found no CUDA libraries, and runs without GPUs.
remedy = Load the site's CUDA module before srun, or, on x86_64, pip install 'tensorflow[and-cuda]'.
    On aarch64, the wheels of TensorFlow have no CUDA.
kind = hint

[gpu-not-used]
cues = but TensorFlow finds none and computes on CPUs
cause = TensorFlow does not use the GPUs that Slurm granted. The end of the line says why.
remedy = Do as the line says. On aarch64 (Grace), pip has no TensorFlow with CUDA: use NVIDIA's
    container (nvcr.io/nvidia/tensorflow), or the site's module.
kind = hint

[cpu-instructions]
cues = TensorFlow library was compiled to use|Illegal instruction|SIGILL|exit code 132
    |Maschinenbefehl|nstruction ill|nstrucci|struzione
cause = TensorFlow, or another library, was compiled for CPUs other than this node's.
remedy = Ask for nodes like those on which it runs (--constraint), or install TensorFlow from pip.
pattern = TensorFlow library was compiled to use \w{1,20} instructions.{1,10}these aren't available
    |${srun} (?:Illegal instruction|Exited with exit code 132)
    |${shell} +\d+ (?:Illegal inst|Ungültiger Masch|Instruction ill|Instrucci[oó]n ile|Istruzione)
    |task \d{1,7} was ended by SIGILL|Fatal Python error: Illegal instruction
hides = program-crashed task-failed

[too-many-threads]
cues = pthread_create|can't start new thread|fork:|fork :|what():|OMP: |Thread creation failed
cause = The limit of processes and threads on this node is reached (ulimit -u, or the job's cgroup).
remedy = Start fewer tasks on a node, or fewer threads in each: OMP_NUM_THREADS,
    TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS, num_parallel_calls. ulimit -u shows the limit.
pattern = pthread_create\(\) failed|pthread_create.{0,60}Resource temporarily unavailable
    |can't start new thread|Thread creation failed|unable to allocate necessary resources for OMP
    |what\(\): +(?:thread: )?Resource temporarily unavailable|OMP: System error #11
    |fork ?: .{0,40}(?:Resource temporarily|Cannot allocate|Ressource temporairement|Die Ressource)
hides = task-crashed

[resource-unavailable]
cues = Resource temporarily unavailable
cause = If the traceback shows fork, a pool or subprocess, the limit of processes on this node is
    reached (ulimit -u, or the job's cgroup). Else another process holds the file or socket.
remedy = Start fewer processes and threads in each task: workers=…, OMP_NUM_THREADS,
    TF_NUM_INTRAOP_THREADS. ulimit -u shows the limit. Let only one task write the file.
pattern = BlockingIOError: \[Errno 11\] Resource temporarily unavailable

[too-many-files]
cues = Too many open files
cause = The process has more open files and connections than its limit allows (ulimit -n).
remedy = Raise it in the batch file, before srun, up to what ulimit -Hn shows: ulimit -n NUMBER.
    Look for files that the program never closes.

[disk-full]
cues = No space left on device|Disk quota exceeded
cause = A disk, or your quota on it, is full.
remedy = df -h and quota -s on the node show it; /tmp and /dev/shm are the node's own. Keep fewer
    checkpoints, or set TMPDIR and the folders of output to another disk.

[file-system]
cues = Stale file handle|Input/output error|Transport endpoint is not connected
cause = The shared file system did not answer on this node.
remedy = Leave the node out (--exclude=NODE), and tell the site; restart from a checkpoint.
pattern = (?:OSError|Error|error|\[Errno \d+\]).{0,200}(?:Stale file handle|Input/output error
    |Transport endpoint is not connected)

[check-failed]
cues = failed
cause = slurm-resolver check found this before the training.
remedy = Its line says what to do. Run it again alone: srun slurm-resolver check
pattern = ^(?: *\d{1,7}: ?)?(?=[a-z_ ]{12})(?P<address>[a-z_]{1,30})  +failed   \S

[step-waits]
cues = step creation temporarily disabled|step creation still disabled|Step created for
cause = srun is waiting for CPUs, memory, GPUs or nodes of its job that another step holds; the
    tasks have not started.
remedy = In the shell of srun --pty, in Jupyter, or beside another step: srun --overlap. Else start
    the other step with less: srun --exact, --mem, --gres. squeue --steps shows the steps.
pattern = step creation (?:temporarily|still) disabled
hides = time-limit cancelled
settled = Step created for

[allocation-refused]
cues = Unable to allocate resources|Batch job submission failed
cause = Slurm refused the job: it asks for more than its partition, account or limits allow.
remedy = The end of the line says what. sinfo -o '%P %l %D %c %m %G' shows what partitions have.
pattern = (?:srun|salloc|sbatch): error: (?!.*(?:timed out|contact))
    (?:Unable to allocate resources|Batch job submission failed)

[job-expired]
cues = has expired|Expired or invalid job
cause = The SLURM_ variables of this shell belong to a job that has ended or does not exist, as in a
    tmux or screen that was started within that job.
remedy = Open a new shell, or unset them (bash): unset $${!SLURM_@}
pattern = srun: .{0,80}(?:[Jj]ob \d{1,10} has expired|Expired or invalid job \d)
kind = request

[step-too-late]
cues = already completing or completed
cause = The job was ending when srun was called.
remedy = The lines before it say why it ended; sacct -j JOBID -o JobID,State,Reason,ExitCode
kind = end

[step-refused]
cues = Unable to create step for job|Unable to create job step
cause = Slurm refused the step: it asks for more than the job has, or than its other steps leave.
remedy = Compare srun's options with the job: scontrol show job JOBID. Inside a step (srun --pty,
    Jupyter) use srun --overlap, and look at the SLURM_ variables that it inherits, such as
    SLURM_MEM_PER_CPU. Beside other steps give each less: srun --exact, --mem
pattern = Unable to create (?:step for job|job step)[^:]{0,40}: (?:Memory required by task
    |More processors requested|CPU count specification|Task (?:count|distribution) specification
    |Cannot request more threads per core|Requires more ports|Requested time limit is invalid
    |Requested operation not supported|Requested GRES option|Invalid GRES|Invalid feature
    |(?:Invalid|Duplicate) generic resource|Invalid Trackable|X11 forwarding not available
    |Step limit reached|Pathname of a file)
kind = request
hides = step-waits

[option-refused]
cues = Invalid --|Invalid numeric value|nvalid number of |nvalid node count|not a valid node count
    |Invalid argument (|unrecognized |option|Invalid accounting frequency
cause = srun does not accept an option, or a variable that it reads in place of one.
remedy = The line names it; srun --help shows the options of this Slurm. sbatch makes
    such variables of the batch file's own options, for example SLURM_CPUS_PER_TASK.
pattern = (?:srun|sbatch|salloc): (?:(?:error|fatal): (?:Invalid (?:--|numeric value|argument \()
    |[Ii]nvalid n(?:umber of |ode count)|.{1,200} is not a valid node count|unrecognized --)
    |(?:unrecognized |invalid |ambiguous )?option\b)|Invalid accounting frequency requested
kind = request

[options-exclusive]
cues = mutually exclusive|set by two different environment variables
cause = srun got two options that exclude each other. Most often one comes from the variables of the
    job or step in which srun or sbatch was called.
remedy = Unset those that you did not mean before srun, such as: unset SLURM_MEM_PER_CPU
    SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_TRES_PER_TASK; or give srun one of the options.
pattern = (?:srun|sbatch|salloc): (?:fatal|error): .{0,300}(?:mutually exclusive
    |set by two different environment variables)
kind = request

[cpu-binding]
cues = CPU binding outside of job step|nable to satisfy cpu bind request|nable to layout tasks on
cause = The step inherits the CPU binding of the step in which srun was called (SLURM_CPU_BIND), and
    has other CPUs.
remedy = unset SLURM_CPU_BIND SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_LIST before srun, or
    srun --cpu-bind=none
hides = cancelled task-crashed launch-failed
kind = request

[launch-failed]
cues = Task launch for|Application launch failed|timeout waiting for task launch
cause = Slurm could not start the tasks on this node.
remedy = sinfo -R and scontrol show node NODE say more. Leave the node out: --exclude=NODE
pattern = srun: error: (?:Task launch for \S{1,60} failed on node (?P<address>[\w.-]{1,80})
    |Application launch failed|timeout waiting for task launch)

[mpi-plugin]
cues = plugin name for mpi/|nvalid MPI type|cannot find mpi plugin
cause = This Slurm does not have the MPI plugin that srun or the site's default asks for.
remedy = TensorFlow needs none: srun --mpi=none. srun --mpi=list shows which ones exist.
pattern = srun: (?:error|fatal): .{0,100}(?:plugin name for mpi/|nvalid MPI type|find mpi plugin)
kind = request

[slurm-unreachable]
cues = Socket timed out on send/recv|Unable to contact slurm controller|Job credential expired
    |nvalid job credential|Zero Bytes were transmitted
cause = Slurm's daemons did not answer each other in time, or their clocks differ.
remedy = Submit the job again. If it happens again, tell the site, with the time and the node.
pattern = (?:srun|slurmstepd\S{0,80}|sbatch): (?:error|fatal): .{0,200}(?:Socket timed out
    |Unable to contact slurm|Job credential expired|nvalid job credential|Zero Bytes were)

[step-not-created]
cues = Unable to create step for job|Unable to create job step
cause = Slurm did not create the step: a node is down or busy, or is not one of the job's; or the
    step asks for what none of the job's nodes has.
remedy = Compare srun's options with the job: scontrol show job JOBID, scontrol show node NODE
hides = step-waits

[folder-missing]
cues = couldn't chdir to
cause = The folder in which the job was submitted does not exist on this node: the tasks start in
    /tmp, and do not find the program and its files.
remedy = Submit it from a folder that all nodes share, or use sbatch --chdir.
pattern = couldn't chdir to .(?P<address>[^'`]{1,200}).:

[requeued]
cues = DUE TO JOB REQUEUE
cause =
remedy =
pattern = ${cancelled} DUE TO JOB REQUEUE \*
kind = hidden
hides = effect end

[interrupted]
cues = KeyboardInterrupt
cause = The task was interrupted: by Ctrl-C in srun's terminal, or by scancel --signal=INT.
remedy = If nobody did so, look at what was written before it.
pattern = ^(?: *\d{1,7}: ?)?KeyboardInterrupt
kind = effect

[time-limit]
cues = DUE TO TIME LIMIT
cause = The job reached its time limit.
remedy = Ask for more time (sbatch --time), or save on a signal before it: --signal=USR1@120
pattern = ${cancelled} DUE TO TIME LIMIT \*
kind = end

[preempted]
cues = DUE TO PREEMPTION
cause = A job of higher priority took the nodes.
remedy = Save checkpoints, and submit with sbatch --requeue.
pattern = ${cancelled} DUE TO PREEMPTION \*
kind = end

[node-failed]
cues = DUE TO NODE FAILURE
cause = A node went down.
remedy = sinfo -R names it. Restart from a checkpoint without it: --exclude=NODE
pattern = ${cancelled} DUE TO NODE FAILURE.{0,60} \*
kind = end

[ended-after-failure]
cues = DUE TO TASK FAILURE
cause = A task failed, and srun --kill-on-bad-exit ended the others.
remedy = ${first}
pattern = ${cancelled} DUE TO TASK FAILURE \*
kind = end

[step-unkillable]
cues = NOT ENDING WITH SIGNALS|giving up after |STEPD TERMINATED
cause = Processes on this node did not end when Slurm killed them: they wait in the kernel, most
    often for a file system or a GPU. Slurm drains the node.
remedy = Why the job was to end, the lines before say. Tell the site, with the node and the time
    (sinfo -R: Kill task failed), and leave the node out: --exclude=NODE
pattern = STEPD TERMINATED ON (?P<address>[\w.-]{1,80}) AT \S{1,40} DUE TO JOB NOT
    |Container \d{1,9} in cgroup plugin has \d{1,9} processes, giving up after
hides = cancelled
kind = end

[cancelled]
cues = CANCELLED AT
cause = The step or job was cancelled by scancel, by Ctrl-C, or by srun after a task failed.
remedy = ${first}
pattern = ${cancelled}(?: DUE to SIGNAL [A-Za-z ]{1,40})? \*
kind = effect

[out-of-memory]
cues = Out Of Memory|oom_kill event|oom-kill event|exceeded memory limit
    |xceeded job memory limit|exceeded virtual memory limit|OOM Killed
cause = The task used more memory than Slurm granted the job, and was killed.
remedy = ${memory}
pattern = ${srun} Out Of Memory|oom[_-]kill event|OOM Killed
    |exceeded (?:virtual )?memory limit .{0,80}being killed|xceeded job memory limit(?! at some)
hides = cancelled task-crashed program-crashed

[signal-unhandled]
cues = User defined signal
cause = A signal that Slurm sends before the end of the job (--signal), or scancel, ended the
    program, which does not handle it.
remedy = Save on the signal with BackupAndResume, ResumableLoop or termination_config, created
    before anything that takes long; or leave out --signal.
pattern = (?:${srun} |${shell} +\d+ )User defined signal
kind = end

[timed-out]
cues = exit code 124|exit status 124
cause = The command `timeout`, if it started the program, ended it: its time was up.
remedy = Give it more time, or find out where the program waits: python -X faulthandler, and
    timeout --signal=ABRT
pattern = (?:${srun} Exited with exit code|ended with exit status) 124
kind = end

[killed-in-task]
cues = exit code 137|exit status 137
cause = The program within the task was killed (137 is 128 and SIGKILL): most often, it used more
    memory than was granted.
remedy = ${memory}
pattern = (?:${srun} Exited with exit code|ended with exit status) 137
kind = end

[task-failed]
cues = Exited with exit code
cause = The task's program ended with an error.
remedy = ${first}
pattern = ${srun} Exited with exit code (?!75\b)
kind = end

[program-crashed]
cues = slurm_script|sh:
cause = A signal ended the program: a crash; if Killed, a lack of memory or scancel.
remedy = sacct -j JOBID -o JobID,State,ExitCode,MaxRSS; python -X faulthandler shows where.
pattern = ${shell} +\d+ [^\s\d]
kind = end

[task-crashed]
cues = srun: error:|was ended by SIG
cause = A signal ended the task: a crash; if Killed, scancel or a lack of memory.
remedy = python -X faulthandler shows where; sacct -j JOBID -o JobID,State,ExitCode,MaxRSS
pattern = ${srun} (?!Exited with|Out Of Memory|Terminated)[A-Z]
    |slurm-resolver run: task \d{1,7} was ended by SIG(?!TERM|INT)
kind = end

[program-not-executable]
cues = Permission denied|Exec format error|cannot execute
cause = The file is not a program: it lacks the permission to be executed, or its first line (#!).
remedy = Start it with its interpreter (python train.py), or chmod +x it. Its disk may be
    mounted noexec.
pattern = (?:execve\(\): |${at_line} )(?P<address>[^\s()]{1,200}):[ ]
    (?:cannot execute.{0,20}: )?(?:Permission denied|Exec format error)

[program-not-found]
cues = No such file
cause = The file, or the interpreter in the first line (#!) of a program, does not exist on that
    node, or PATH does not lead to it.
remedy = Use a path that all nodes share, and activate the virtual environment before srun. If the
    job was submitted with --export=NONE, srun starts the tasks without the batch file's PATH:
    unset SLURM_EXPORT_ENV before it.
pattern = (?:execve\(\): (?:bad interpreter\()?|${at_line} |can't open file ')
    (?P<address>[^\s()':]{1,200})[)']?: (?:\[Errno 2\] )?No such file

[command-not-found]
cues = not found|nicht gefunden|introuvable|no encontrad|não encontrad|non trovato
cause = The shell does not find the program on this node: its environment is not active.
remedy = Activate it in the batch file, before srun: source ~/venv/bin/activate, or module load …
    After sbatch --export=NONE, unset SLURM_EXPORT_ENV before srun.
pattern = ${at_line} (?P<address>\S{1,200}) ?: (?:command not found|not found
    |(?:Kommando|Befehl) nicht gefunden|commande introuvable|(?:orden|comando) n\w{1,3} \w{4,10})
"""
CAUSES = ("cause", "request")  # the kinds of messages that say why
FAULTS = (*CAUSES, "effect")
_JOINTS = {"cause": " ", "remedy": " "}  # between the lines of a value; by default nothing
_SECTIONS = configparser.ConfigParser(interpolation=configparser.ExtendedInterpolation())
_SECTIONS.read_string(TABLE)
_SECTIONS.read_string(_TABLE)


def _message(id: str) -> KnownMessage:
    texts = {"id": id}
    for name in KnownMessage._fields[1:]:
        texts[name] = _SECTIONS[id][name].replace("\n", _JOINTS.get(name, ""))
    return KnownMessage(**texts)


MESSAGES = {id: _message(id) for id in _SECTIONS.sections()}
