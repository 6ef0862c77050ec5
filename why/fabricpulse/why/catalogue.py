"""The causes, in the order in which one explains another: what stands earlier may bring about what stands later."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes import (
    clock_error,
    compute,
    contention_jobs,
    contention_self,
    hang,
    incast,
    lane_imbalance,
    misrouted_path,
    nic_flap,
    nic_loss,
    plugin_off,
    rank_dead,
    receiver_congestion,
    slow_link,
    straggler_gpu,
    straggler_rank,
    uneven_rails,
)
from fabricpulse.why.finding import Finding


@dataclass(frozen=True)
class Cause:
    """One kind of cause. page : its text; network : whether it is one of the network's."""

    name: str
    title: str
    page: str
    do: tuple[str, ...]
    find: Callable[[Analysis], Iterator[Finding]]
    network: bool


_NOT_NETWORK = {
    "rank_dead",
    "hang",
    "straggler_gpu",
    "straggler_rank",
    "compute",
    "clock_error",
    "plugin_off",
    "receiver_congestion",
}

CAUSES: dict[str, Cause] = {
    name: Cause(
        name,
        module.TITLE,
        inspect.cleandoc(module.__doc__ or ""),
        module.DO,
        module.find,
        name not in _NOT_NETWORK,
    )
    for module in (
        rank_dead,
        nic_flap,
        receiver_congestion,
        nic_loss,
        hang,
        slow_link,
        straggler_gpu,
        straggler_rank,
        misrouted_path,
        incast,
        contention_jobs,
        contention_self,
        plugin_off,
        uneven_rails,
        lane_imbalance,
        clock_error,
        compute,
    )
    for name in [module.__name__.rpartition(".")[2]]
}

# Cause -> causes that it may bring about, at the same place or anywhere in the job (a job is as slow as its slowest
# part). What is explained is shown below its reason and not ranked beside it.
_QUEUES = {"contention_jobs", "contention_self", "incast"}
_FABRIC = {"nic_loss", "lane_imbalance", "uneven_rails"} | _QUEUES
EXPLAINS: dict[str, set[str]] = {
    "rank_dead": {"hang", "straggler_rank", "plugin_off", "lane_imbalance"},
    "hang": {"straggler_rank", "compute", "plugin_off", "lane_imbalance", "uneven_rails"},
    "nic_flap": _FABRIC | {"hang"},
    "nic_loss": {"lane_imbalance"} | _QUEUES,
    "slow_link": {"lane_imbalance", "misrouted_path", "nic_loss"} | _QUEUES,
    # What a host does not take is lost, or waits in its port's queue, as before a link that is slower than it says.
    "receiver_congestion": {"nic_loss", "slow_link", "lane_imbalance"} | _QUEUES,
    "incast": {"contention_self", "lane_imbalance"},
    "contention_jobs": {"contention_self", "lane_imbalance"},
    "contention_self": {"lane_imbalance"},
    "misrouted_path": {"lane_imbalance"},
    "straggler_gpu": {"straggler_rank", "compute"},
    "straggler_rank": {"compute"},
    "plugin_off": {"lane_imbalance", "uneven_rails"},
    "uneven_rails": {"lane_imbalance"},
}
# Cause and effect where a hint explains nothing: flows of another job wait, too, as if they shared a link.
ONLY_IF_SURE = {("nic_loss", "contention_jobs")}
# Makes what is measured wrong and no job slower.
HARMLESS = {"clock_error"}
# Of these the whole job is an effect: what they explain need not be at the same place.
EVERYWHERE = {"rank_dead", "hang", "contention_jobs", "straggler_gpu", "straggler_rank", "uneven_rails"}
