"""Which interface of each node leads to the others, and whether NCCL takes such a one.

NCCL takes interfaces by their names and listens at their addresses. Where one does not lead to the
other nodes, as a bridge for containers, its tasks wait for each other for ever. Which do lead there
is tried: each node connects to the addresses that NCCL would use on others.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.nccl_check import NcclChoice, find_wrong_choices
from slurm_resolver.preflight.nccl_rules import FIRST_NEWER, choose_interfaces, read_nccl_settings
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.rendezvous.interfaces import list_interfaces
from slurm_resolver.rendezvous.probe import RankReply, ask_rank, ranks_to_ask
from slurm_resolver.slurm.hostlist_compress import compress_hostlist


def first_ranks(cluster: Cluster) -> Dict[str, int]:
    """Returns the lowest rank on each node, which speaks for it."""
    ranks: Dict[str, int] = {}
    for task in cluster.tasks:
        ranks.setdefault(task.node, task.rank)
    return ranks


def nccl_note(cluster: Cluster) -> Note:
    """Returns what NCCL would choose in this task, for `share_choices`."""
    task = cluster.task
    assert task is not None
    note: Note = {"uses_gpu": bool(cluster.gpus)}
    if first_ranks(cluster)[task.node] == task.rank:
        interfaces, settings = list_interfaces(), read_nccl_settings()
        taken = choose_interfaces(interfaces, settings)
        newer = choose_interfaces(interfaces, settings._replace(version=FIRST_NEWER))
        note["names"] = list(dict.fromkeys(one.name for one in interfaces))
        note["taken"] = [[one.name, one.address] for one in taken]
        note["asked_for"] = settings.variables.get("SOCKET_IFNAME", "")
        unsure = [] if settings.version else [one.name for one in taken if one not in newer]
        note["older"] = unsure
    return note


def share_choices(notes: Mapping[int, Note], cluster: Cluster) -> Dict[str, Any]:
    """Returns what all tasks get to know: by rank, the interfaces that NCCL would take.

    Nothing where it is not used: without GPUs, on one node, and with parameter servers, whose
    tasks talk by gRPC.
    """
    nodes = {cluster.tasks[rank].node for rank, note in notes.items() if note["uses_gpu"]}
    firsts = first_ranks(cluster)
    if len(nodes) < 2 or any(task.job == "ps" for task in cluster.tasks):
        return {"nccl": {}}
    return {
        "nccl": {str(rank): notes[rank]["taken"] for node, rank in firsts.items() if node in nodes}
    }


def ask_by_interfaces(
    cluster: Cluster, replies: Mapping[int, RankReply], chosen: Mapping[str, Any]
) -> Note:
    """Returns which interfaces of this node lead to the others, and what NCCL would not reach.

    Args:
        cluster: the cluster.
        replies: what the tasks that this one has asked have answered, by rank.
        chosen: of `share_choices`.
    """
    tasks, task = cluster.tasks, cluster.task
    assert task is not None
    if first_ranks(cluster)[task.node] != task.rank:
        return {}
    own = {one.address.partition("%")[0]: one for one in list_interfaces()}
    leads = []
    for rank, reply in replies.items():
        one = own.get(reply.own_address.partition("%")[0])
        if tasks[rank].node != task.node and one is not None and not one.loopback:
            leads.append(one.name)
    note: Note = {"leads": list(dict.fromkeys(leads)), "nccl_unreached": []}
    ranks = [int(rank) for rank in chosen]
    if task.rank not in ranks:
        return note
    # A few of them: whom each node asks, and is asked by, leads round to all.
    asked = [ranks[i] for i in ranks_to_ask(ranks.index(task.rank), len(ranks), max_tasks=1)]
    questions = [(rank, name, to) for rank in asked for name, to in chosen[str(rank)]]
    with ThreadPoolExecutor(max(1, len(questions))) as pool:
        answers = pool.map(lambda one: _ask_address(cluster, replies, one[0], one[2]), questions)
        for (rank, name, to), problem in zip(questions, answers):
            if problem:
                found = "which is its own address" if to in own else problem
                note["nccl_unreached"].append(
                    [rank, name, f"{task.node} connects to {to}: {found}"]
                )
    return note


def _ask_address(
    cluster: Cluster, replies: Mapping[int, RankReply], rank: int, address: str
) -> str:
    """Returns why a task cannot be reached at this address of its node; '' where it can."""
    by_name = cluster.tasks[rank].address
    if (replies.get(rank) or ask_rank(by_name, rank)).problem is not None:
        return ""  # it cannot be reached at all, which is told elsewhere
    return ask_rank(f"{address}:{by_name.rpartition(':')[2]}", rank).problem or ""


def check_interfaces(
    notes: Mapping[int, Note], cluster: Cluster, chosen: Mapping[str, Any]
) -> Result:
    """Returns which interface leads from each node to the others, and NCCL's wrong choices."""
    nodes = first_ranks(cluster)
    leads = {node: notes[rank].get("leads", []) for node, rank in nodes.items()}
    unreached: Dict[int, Dict[str, str]] = {}
    for note in notes.values():
        for rank, name, found in note.get("nccl_unreached", []):
            unreached.setdefault(rank, {}).setdefault(name, found)
    choices = {
        cluster.tasks[int(rank)].node: NcclChoice(
            note["names"],
            [name for name, _ in taken],
            unreached.get(int(rank), {}),
            leads[cluster.tasks[int(rank)].node],
            note["asked_for"],
            note["older"],
        )
        for rank, taken in chosen.items()
        for note in (notes[int(rank)],)
    }
    problems = find_wrong_choices(choices)
    if problems:
        return Result("interfaces", WARNING, "; ".join(problems))
    nodes_by_names: Dict[str, List[str]] = {}
    for node, names in leads.items():
        if names:
            nodes_by_names.setdefault(" and ".join(names), []).append(node)
    if not nodes_by_names:
        reason = "no other node was reached" if len(nodes) > 1 else "all tasks run on one node"
        return Result("interfaces", SKIPPED, reason)
    each = ", ".join(f"{names} of {compress_hostlist(on)}" for names, on in nodes_by_names.items())
    return Result("interfaces", OK, f"{each} {_lead(nodes_by_names)} to the other nodes")


def _lead(interfaces: Mapping[str, Any]) -> str:
    return "leads" if len(interfaces) == 1 and " and " not in next(iter(interfaces)) else "lead"
