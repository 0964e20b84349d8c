"""What the messages of TensorFlow, gRPC, CUDA and Slurm mean when a distributed run goes wrong.

One table of known messages, and a search through a log in one pass. A log may be long, have lines
of many megabytes, progress bars and bytes that are no text: time grows linearly with its size, and
memory with the number of findings, which is bounded.
"""

from __future__ import annotations

import inspect
import itertools
import re
from typing import BinaryIO, Dict, Iterable, Iterator, List, NamedTuple, Optional, Pattern, Tuple

from slurm_resolver import errors


class Finding(NamedTuple):
    """A known message: where it first stands, what it means and what to do.

    `address` is the task that it names: `host:port`, `/job:worker/replica:0/task:3`, or srun's
    `n10: task 1`. `count` is the number of lines with this message and address.
    """

    id: str
    line_number: int
    line: str
    cause: str
    remedy: str
    address: Optional[str]
    count: int  # type: ignore[assignment]  # a tuple has a method of this name


class Known(NamedTuple):
    """A known message: a line has one of the `cues` (found fast), and matches `pattern`.

    One that a line with `ends` follows was only a passing state; that line has a cue as well.
    """

    id: str
    cues: Tuple[str, ...]
    pattern: Pattern[str]
    cause: str
    remedy: str
    ends: Optional[Pattern[str]]


def _known(
    id: str, cues: str, cause: str, remedy: str, pattern: str = "", ends: Optional[str] = None
) -> Known:
    """`cues` are literals with | between them; the pattern is them where none is given."""
    literals = tuple(cues.split("|"))
    compiled = re.compile(pattern or "|".join(map(re.escape, literals)))
    return Known(id, literals, compiled, cause, remedy, re.compile(ends) if ends else None)


_CHECK = "Check names, ports and reach from all tasks: srun slurm-resolver check"
_FIRST = "Find out which task failed first; its own log says why: srun --label --kill-on-bad-exit=1"
_ENDED = "has ended, or was never started."
_SRUN = r"srun: error: (?P<address>[\w.,\[\]-]{1,200}: tasks? [\d,\[\]-]{1,200}): "


def _stepd(reason: str) -> str:
    return rf"\*\*\* (?:JOB|STEP) \S{{1,60}} ON (?P<address>\S{{1,80}}) CANCELLED AT \S+{reason} \*"


def _own(error: type) -> Known:
    name = error.__name__
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
    cause = (inspect.getdoc(error) or "").partition("\n")[0]
    remedy = "The message names the variable or argument, its value and what was expected. "
    return _known(
        words, f"{name}: ", cause, remedy + "Look: srun slurm-resolver show", rf"\b{name}: "
    )


# The first that matches a line explains it: the particular stand before the general.
KNOWN: Tuple[Known, ...] = (
    *(_own(e) for e in vars(errors).values() if inspect.isclass(e) and issubclass(e, Exception)),
    _known("startup-deadline", " has not started within ",
        "TensorFlow waited for a peer until startup_deadline() ended the process.",
        "Call resolver.wait_until_ready() first: it names who is missing. " + _CHECK,
        r"slurm_resolver: .{1,200} has not started within "),
    _known("task-restarted", "with a different incarnation|tried to connect while it is already",
        "The task ended and was started again while the others ran on: they cannot take it back.",
        "Restart all tasks together, from a checkpoint: srun --kill-on-bad-exit=1 …"),
    _known("task-unhealthy", "stopped sending heartbeats|heartbeat timeout",
        "The task ended without a farewell (crash, kill, sys.exit) or stood still; TensorFlow "
        "calls all of these crashed. It notices after about 10 seconds.",
        "Read that task's own last lines, and Slurm's: sacct -j JOBID -o JobID,State,ExitCode"),
    _known("leader-lost",
        "ailed to send RPC to coordination service|/tensorflow.CoordinationService/Heartbeat"
        "|failed to register with the leader",
        f"The first task (worker 0 or chief), which runs the coordination service, {_ENDED}",
        "Read the first task's own log. " + _CHECK),
    _known("barrier-failed", "Barrier timed out|Shutdown barrier|Barrier failed",
        "Some tasks came to a common point, others did not: they ended, hang, or have more steps "
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
        "Another process of this node listens on the task's port: a second job, or one left over.",
        "On the node: ss -ltnp. Let Slurm reserve ports (srun --resv-ports), or give port_base.",
        r"No address added out of total \d+ resolved for '(?P<address>[^']{1,80})'"
        r"|No address added out of total|Could not start gRPC server|Address already in use"),
    _known("peer-refused", "Connection refused",
        f"Nobody listens there: the task {_ENDED}",
        f"{_FIRST}. If none failed, the tasks disagree on addresses: srun slurm-resolver check",
        "[Ff]ailed to connect to (?:all addresses|remote host).{0,200}Connection refused"),
    _known("peer-unreachable",
        "ailed to connect to all addresses|ailed to connect to remote host",
        "The task's host does not answer, or nobody listens there: a task that ended, a firewall, "
        "another network, a node down.",
        f"{_CHECK}. Nodes that are down: sinfo -R. Proxies: unset http_proxy https_proxy"),
    _known("peer-closed", "Socket closed|Connection reset by peer|Broken pipe|GOAWAY",
        "The connection was open, and the task at its other end ended.", _FIRST,
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
        "This task is not there yet: it has not started, or listens elsewhere.", _CHECK),
    _known("tasks-missing", " tasks to connect",
        "The first task waits for others, and would wait for ever.",
        "The next lines name some of them. " + _CHECK,
        r"Waiting for [1-9]\d*/\d+ tasks to connect",
        ends=r"Waiting for 0/\d+ tasks to connect"),
    _known("deadline-exceeded", "DEADLINE_EXCEEDED|Deadline Exceeded|DeadlineExceededError",
        "A task did not answer in time: it stands still, is overloaded, or the network loses "
        "packets.", _FIRST),
    _known("collective-aborted", "Collective ops is aborted by",
        "Another task failed during a collective operation, which ended it here too.", _FIRST),
    _known("keras-3-fit", "Attempt to convert a value (PerReplica",
        "Keras 3 cannot fit() under a multi-worker or parameter server strategy.",
        "pip install tf_keras, and TF_USE_LEGACY_KERAS=1 before TensorFlow is imported; or write "
        "the training loop yourself, with Keras 3 layers."),
    _known("tensorflow-slurm-resolver",
        "range() arg 3 must not be zero|No such file or directory: 'nvidia-smi'"
        "|tasks but only",
        "tf.distribute.cluster_resolver.SlurmClusterResolver cannot do without GPUs, or miscounts.",
        "Use this package's: from slurm_resolver import SlurmClusterResolver",
        r"range\(\) arg 3 must|directory: 'nvidia-smi'|Requested \d+ tasks but only \d+ were"),
    _known("no-gpu", "CUDA_ERROR_NO_DEVICE|no CUDA-capable device",
        "The task sees no GPU: none was granted, or CUDA_VISIBLE_DEVICES is empty, as it should be "
        "for parameter servers.",
        "Ask Slurm for them (srun --gpus-per-task=1), and look: srun slurm-resolver show"),
    _known("gpu-ordinal",
        "nvalid device ordinal|CUDA_ERROR_INVALID_DEVICE|listed an invalid Device id",
        "A GPU number that the task does not have: it counts from 0 within CUDA_VISIBLE_DEVICES.",
        "Set neither numbers nor CUDA_VISIBLE_DEVICES by hand; look: srun slurm-resolver show"),
    _known("gpu-out-of-memory",
        "CUDA_ERROR_OUT_OF_MEMORY|failed to allocate |OOM when allocating|ran out of memory trying",
        "The GPU's memory is full: the batch is too large, or several tasks share the GPU, of "
        "which TensorFlow gives the first one all.",
        "Look who shares: srun slurm-resolver show, nvidia-smi. One GPU a task "
        "(--gpus-per-task=1), a smaller batch, or TF_FORCE_GPU_ALLOW_GROWTH=true",
        "CUDA_ERROR_OUT_OF_MEMORY|failed to allocate .{1,80} (?:on|from) device"
        "|OOM when allocating|ran out of memory trying to allocate(?!.{0,200}not a failure)"),
    _known("gpu-used-twice", "Duplicate GPU detected",
        "Two tasks take the same GPU, which NCCL does not allow.",
        "One GPU a task: srun --gpus-per-task=1. Look: srun slurm-resolver show"),
    _known("gpu-libraries-missing", "Cannot dlopen some GPU libraries",
        "TensorFlow found no CUDA libraries and goes on without GPUs.",
        "pip install 'tensorflow[and-cuda]', or load the site's CUDA module before srun."),
    _known("time-limit", " DUE TO TIME LIMIT", "The job reached its time limit.",
        "A longer one (sbatch --time), or checkpoints and a signal before it: --signal=USR1@120",
        _stepd(" DUE TO TIME LIMIT")),
    _known("preempted", " DUE TO PREEMPTION", "A job of higher priority took the nodes.",
        "Save checkpoints, and submit with sbatch --requeue.", _stepd(" DUE TO PREEMPTION")),
    _known("node-failed", " DUE TO NODE FAILURE", "A node went down.",
        "sinfo -R tells which; restart from a checkpoint without it: --exclude=NODE",
        _stepd(" DUE TO NODE FAILURE.{0,60}")),
    _known("requeued", " DUE TO JOB REQUEUE",
        "The job was put back into the queue, and will start again.", "scontrol show job JOBID",
        _stepd(" DUE TO JOB REQUEUE")),
    _known("cancelled", " CANCELLED AT ",
        "Somebody cancelled the step or job: scancel, Ctrl-C, or srun after another task failed.",
        _FIRST, _stepd("")),
    _known("out-of-memory", "Out Of Memory|oom_kill event|oom-kill event",
        "The task used more main memory than the job was granted; the kernel killed it.",
        "sacct -j JOBID -o JobID,MaxRSS,ReqMem; then ask for more: --mem or --mem-per-cpu",
        rf"{_SRUN}Out Of Memory|oom[_-]kill event"),
    _known("task-failed", "Exited with exit code", "The task's program ended with an error.",
        _FIRST, _SRUN + "Exited with exit code"),
    _known("task-crashed", "srun: error: ",
        "A signal ended the task: a crash, or Killed, which is a scancel or a lack of memory.",
        "python -X faulthandler shows where; sacct -j JOBID -o JobID,State,ExitCode,MaxRSS",
        _SRUN + "(?:Killed|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating)"),
    _known("program-not-found", "execve(): ",
        "The program does not exist on that node.",
        "Use a path that all nodes share, and activate the virtual environment before srun.",
        r"execve\(\): (?P<address>\S{1,200}): No such file"),
    _known("no-allocation", "Unable to confirm allocation for job",
        "The job that SLURM_JOB_ID or --jobid names has ended or never was.",
        "squeue --me; in a stale shell: unset SLURM_JOB_ID"),
    _known("step-waits", "step creation temporarily disabled, retrying|Step created for",
        "Another step of the job holds the CPUs, memory or GPUs; srun waits for its end.",
        "Run both at once: srun --overlap, or divide with --exact.",
        "step creation temporarily disabled", ends="Step created for"),
    _known("not-granted",
        "Unable to create step for job|node configuration is not available"
        "|Invalid generic resource",
        "More tasks, CPUs or GPUs than the job or any node has.",
        "scontrol show job JOBID; sinfo -o '%N %c %m %G'"),
    _known("slurm-silent", "Socket timed out on send/recv|Unable to contact slurm controller",
        "Slurm's controller is overloaded or down; the job itself may run on.",
        "scontrol ping; then start the command again, less often (no loops of squeue or srun)."),
)  # fmt: skip

_CUES = [(cue, known) for known in KNOWN for cue in known.cues]
_PIECE = 64 * 1024  # of a line, matched at once
_OVERLAP = 1024  # a message may lie across two pieces
_MOST_ADDRESSES = 100  # of one id; further ones share a finding without an address
_SHOWN = 200
_ADDRESS = re.compile(
    r"/job:(\w{1,40})(?:/replica:\d{1,9})?/task:(\d{1,9})"
    r"|ipv[46]:((?:[\d.]{7,15}|(?:%5B|\[)[\w:.%]{2,60}?(?:%5D|\])):\d{1,5})"
    r'|"target_address":"([\w.:\[\]-]{3,255})"'
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def explain(lines: Iterable[str]) -> List[Finding]:
    """Returns the known messages in `lines`: one for each id and address, by first appearance."""
    return _explain(
        (number, line[max(0, start - _OVERLAP) : start + _PIECE])
        for number, line in enumerate(lines, 1)
        for start in range(0, len(line), _PIECE)
    )


def explain_file(stream: BinaryIO) -> List[Finding]:
    """As `explain`, for an open file of any bytes; it never holds more than a piece of it."""
    return _explain(_pieces(stream))


def _pieces(stream: BinaryIO) -> Iterator[Tuple[int, str]]:
    number, tail = 1, b""
    while True:
        piece = stream.readline(_PIECE)
        if not piece:
            return
        yield number, (tail + piece).decode("utf-8", "replace")
        ended = piece.endswith(b"\n")
        number, tail = number + ended, b"" if ended else piece[-_OVERLAP:]


def _cued(pieces: Iterable[Tuple[int, str]]) -> Iterator[Tuple[int, str, List[Known]]]:
    """The pieces with a cue. Most of a log has none: it is looked at many lines at a time."""
    group: List[Tuple[int, str]] = []
    size = 0
    for number, text in itertools.chain(pieces, [(0, "")]):
        if size >= _PIECE or not number:
            joined = "".join([part for _, part in group])
            cues = [(cue, known) for cue, known in _CUES if cue in joined]
            for place, part in group if cues else ():
                known = [known for cue, known in cues if cue in part]
                if known:
                    yield place, part, known
            group, size = [], 0
        # what a carriage return overwrote on a terminal is still a line to look at
        group += [(number, part) for part in text.split("\r")]
        size += len(text) + 100  # empty lines take memory too


def _explain(pieces: Iterable[Tuple[int, str]]) -> List[Finding]:
    found: Dict[Tuple[str, Optional[str]], Finding] = {}
    last: Dict[Tuple[str, Optional[str]], int] = {}  # the last line counted
    passing: Dict[Tuple[str, Optional[str]], Pattern[str]] = {}
    addresses: Dict[str, int] = {}
    for number, text, candidates in _cued(pieces):
        for key in [key for key in passing if passing[key].search(text)]:
            del found[key], passing[key]
        for known in candidates:
            match = known.pattern.search(text)
            if match is None:
                continue
            address = _address(match)
            key = (known.id, address)
            if key not in found:
                if address and addresses.setdefault(known.id, 0) >= _MOST_ADDRESSES:
                    key = (known.id, None)
                elif address:
                    addresses[known.id] += 1
            before = found.get(key)
            if before is None:
                shown = _shorten(text, match.start())
                found[key] = Finding(known.id, number, shown, known.cause, known.remedy, key[1], 1)
                if known.ends:
                    passing[key] = known.ends
            elif last[key] != number:
                found[key] = before._replace(count=before.count + 1)
            last[key] = number
            break
    return list(found.values())


def _address(match: re.Match[str]) -> Optional[str]:
    """The task that the message names: in the pattern, else behind, else before the match."""
    named = match.groupdict().get("address")
    if named:
        return str(named)
    text, start = match.string, match.start()
    behind = _ADDRESS.finditer(text, start, match.end() + 500)
    before = list(_ADDRESS.finditer(text, max(0, start - 300), start))[-1:]
    for found in itertools.chain(behind, before):
        if found.group(1):
            return f"/job:{found.group(1)}/replica:0/task:{found.group(2)}"
        return (found.group(3) or found.group(4)).replace("%5B", "[").replace("%5D", "]")
    return None


def _shorten(text: str, start: int) -> str:
    """The part of the line around the message, printable and short."""
    first = start - 40 if start > _SHOWN // 2 else 0
    part = _CONTROLS.sub(" ", text[first : first + _SHOWN]).strip()
    return ("… " if first else "") + part + (" …" if len(text) > first + _SHOWN else "")
