"""Faults that are played on a job that really runs, each with what must be named first.

A play breaks something real of the job's hosts, leaves the mending to the stack, and says the truth: one of the given
causes, at a place that names the given text, is the right first answer; an empty truth says that nothing is wrong.
"""

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack

from tests.fixtures.why.fleet import ALL_TO_ALL, Job, Stand
from tests.fixtures.why.truth import Truth

from fabricpulse.lab.faults import Fault

RAILS = ("rail0", "rail1")
# What of the speed of its NICs is left on a slow link.
_SLOW_MBIT = 20.0
_LOST_NS = 1_500_000
# After the other faults: until a window of its own has begun.
_EVENT_S = 12.0


Play = Callable[[Stand, Job, ExitStack], list[Truth]]


def _is(*any_of: tuple[str, str]) -> list[Truth]:
    return [Truth(any_of)]


def _until_end(stack: ExitStack, fault: Fault) -> None:
    stack.callback(fault.undo)


def _nic(stand: Stand, job: Job) -> tuple[str, str]:
    return stand.rng.choice(job.hosts), stand.rng.choice(RAILS)


def healthy(_: Stand, __: Job, ___: ExitStack) -> list[Truth]:
    return []


def dead_rail(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).down())
    return _is(("nic_flap", f"{device} of {host}"))


def flapping_nic(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).flap(0.1))
    return _is(("nic_flap", f"{device} of {host}"))


def silent_nic(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """Carrier stays, packets do not."""
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).black_hole())
    return _is(("nic_flap", f"{device} of {host}"))


def lossy_nic(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).loss(stand.rng.choice((2, 5))))
    return _is(("nic_loss", f"{device} of {host}"))


def lossy_one_way(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    host, device = _nic(stand, job)
    way = stand.rng.choice(("rx", "tx"))
    _until_end(stack, stand.lab.host(host).nic(device).loss(5, way))  # type: ignore[arg-type]
    return _is(("nic_loss", f"{device} of {host}"))


def slow_link(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """The cable of a NIC passes a sixth of its speed, both ways; nothing says so."""
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).limit(_SLOW_MBIT, way="both"))
    return _is(("slow_link", f"{device} of {host}"))


def stopped_rank(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    number = stand.rng.randrange(len(job.hosts))
    process = job.ring.ranks[number].process
    process.suspend()
    stack.callback(process.resume)
    return _is(("hang", f"rank {number} on {job.hosts[number]}"))


def cut_off_host(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """Nothing gets through to or from one host, on any rail."""
    host = stand.rng.choice(job.hosts)
    for rail in RAILS:
        _until_end(stack, stand.lab.host(host).nic(rail).black_hole())
    # Which NICs are cut off, or which link the job waits for.
    return _is(("hang", host), ("nic_flap", host))


def dead_rank(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    number = stand.rng.randrange(len(job.hosts))
    job.ring.ranks[number].process.kill()
    stack.callback(job.restart)
    return _is(("rank_dead", job.hosts[number]))


def late_rank(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    number = stand.rng.randrange(len(job.hosts))
    process = job.ring.ranks[number].process
    process.send_signal(signal.SIGUSR1)
    stack.callback(process.send_signal, signal.SIGUSR1)
    return _is(("straggler_rank", f"rank {number} on {job.hosts[number]}"))


def slow_input(_: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """All ranks take longer between collectives: not the network."""
    for rank in job.ring.ranks:
        rank.process.send_signal(signal.SIGUSR1)
        stack.callback(rank.process.send_signal, signal.SIGUSR1)
    return _is(("compute", ""))


def avoided_nic(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    host, device = _nic(stand, job)
    job.avoid(host, device)
    stack.callback(job.avoid, host, device, on=False)
    return _is(("lane_imbalance", f"{device} of {host}"))


def avoided_rail(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    device = stand.rng.choice(RAILS)
    for host in job.hosts:
        job.avoid(host, device)
        stack.callback(job.avoid, host, device, on=False)
    return _is(("uneven_rails", device))


def detour(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """The leaf sends what the job sends over the spine a longer way, probes as before."""
    device = stand.rng.choice(RAILS)
    source, target = job.across
    _until_end(stack, stand.lab.detour(f"{source}-{device}", f"{target}-{device}", 15.0))
    return _is(("misrouted_path", f"{device} of {source}"), ("misrouted_path", f"{device} of {target}"))


def clock_step(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """An event, not a state: it happens within the window that is asked about."""
    host = stand.rng.choice(job.hosts)
    timer = threading.Timer(_EVENT_S, stand.lab.host(host).clock.pause, (_LOST_NS,))
    timer.start()
    stack.callback(timer.cancel)
    return _is(("clock_error", host))


def blind_qp(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """An exporter is off and the job is well: it must be said that data is missing, and nothing else."""
    host = stand.rng.choice(job.hosts)
    stand.stop(host, "qp")
    stack.callback(stand.start, host, "qp")
    return []


def blind_mesh(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """The same of the exporter that sends the probes."""
    host = stand.rng.choice(job.hosts)
    stand.stop(host, "mesh")
    stack.callback(stand.start, host, "mesh")
    return []


def incast(_: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """Three ranks send one five times as much as before, more than its NICs take."""
    for number, rank in enumerate(job.ring.ranks):
        if number != job.hot:
            rank.process.send_signal(signal.SIGUSR2)
            stack.callback(rank.process.send_signal, signal.SIGUSR2)
    return _is(("incast", f"of {job.hosts[job.hot]}"))


def paused_receiver(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """A host takes data at a sixth of the speed and pauses its switch port; the queue is in the switch."""
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).limit(_SLOW_MBIT, way="rx"))
    stand.hardware.nic(host, device, paused=stand.rng.choice((0.3, 0.7)))
    stack.callback(stand.hardware.nic, host, device)
    return _is(("receiver_congestion", f"{device} of {host}"))


def dropping_receiver(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """The same where nobody pauses: what the host does not take is dropped, and counted by its NIC."""
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).loss(4, "rx"))
    stand.hardware.nic(host, device, drops=stand.rng.choice((60.0, 400.0)))
    stack.callback(stand.hardware.nic, host, device)
    return _is(("receiver_congestion", f"{device} of {host}"))


def narrow_pcie(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """The slot of a NIC has trained down to two of sixteen lanes: slow both ways."""
    host, device = _nic(stand, job)
    _until_end(stack, stand.lab.host(host).nic(device).limit(_SLOW_MBIT, way="both"))
    stand.hardware.nic(host, device, lanes=2)
    stack.callback(stand.hardware.nic, host, device)
    return _is(("receiver_congestion", f"{device} of {host}"))


def slow_gpu(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """A rank is late because its GPU is hot; there are no GPUs in the lab, so that their exporter is played."""
    (late,) = late_rank(stand, job, stack)
    place = late.any_of[0][1]
    host = place.rpartition(" ")[2]
    stand.hardware.gpu(host, stand.rng.choice((0.5, 0.8)))
    stack.callback(stand.hardware.gpu, host)
    return _is(("straggler_gpu", place))


def plugin_off(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    """The job starts anew, and on one host nothing of the plugin is seen."""
    number = stand.rng.randrange(len(job.hosts))
    job.restart(dark=number)
    stack.callback(job.restart)
    return _is(("plugin_off", job.hosts[number]))


def requeued(_: Stand, job: Job, __: ExitStack) -> list[Truth]:
    """The job ends and starts anew, and is as quick as before."""
    job.restart()
    return []


def slow_gpu_and_loss(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    found = slow_gpu(stand, job, stack)
    host = stand.rng.choice([h for h in job.hosts if h not in found[0].any_of[0][1]])
    device = stand.rng.choice(RAILS)
    _until_end(stack, stand.lab.host(host).nic(device).loss(5))
    return [*found, *_is(("nic_loss", f"{device} of {host}"))]


def receiver_and_late(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    found = paused_receiver(stand, job, stack)
    number = stand.rng.choice([n for n, h in enumerate(job.hosts) if h not in found[0].any_of[0][1]])
    process = job.ring.ranks[number].process
    process.send_signal(signal.SIGUSR1)
    stack.callback(process.send_signal, signal.SIGUSR1)
    return [*found, *_is(("straggler_rank", f"rank {number} on {job.hosts[number]}"))]


def late_and_dead_rail(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    found = late_rank(stand, job, stack)
    host = stand.rng.choice([h for h in job.hosts if h not in found[0].any_of[0][1]])
    device = stand.rng.choice(RAILS)
    _until_end(stack, stand.lab.host(host).nic(device).down())
    return [*found, *_is(("nic_flap", f"{device} of {host}"))]


def late_and_clock(stand: Stand, job: Job, stack: ExitStack) -> list[Truth]:
    return [*late_rank(stand, job, stack), *clock_step(stand, job, stack)]


def shared_uplink(stand: Stand, _: Job, stack: ExitStack) -> list[Truth]:
    """Both jobs meet on a cable between leaf and spine that has not enough for the two. Played for both at once."""
    leaf = stand.lab.host(stand.jobs[0].hosts[1]).nic(stand.rng.choice(RAILS)).leaf
    spine = stand.lab.fabric.spine_names[0]
    _until_end(stack, stand.lab.link(leaf, spine).limit(30.0, way="out"))
    return _is(("contention_jobs", ""))


PLAYS: tuple[Play, ...] = (
    dead_rail, stopped_rank, late_rank, lossy_nic, slow_input, avoided_nic, silent_nic, dead_rank, flapping_nic,
    clock_step, slow_link, cut_off_host, avoided_rail, lossy_one_way, blind_qp, late_and_dead_rail, detour, blind_mesh,
    late_and_clock, healthy, incast, paused_receiver, slow_gpu, plugin_off, narrow_pcie, dropping_receiver,
    slow_gpu_and_loss, receiver_and_late, requeued,
)  # fmt: skip
# Which need more than one sender into a NIC.
ONLY_ON: dict[str, tuple[str, ...]] = {"incast": (ALL_TO_ALL,)}
# What both jobs suffer.
SHARED: tuple[Play, ...] = (shared_uplink,)
STALLS = (stopped_rank, cut_off_host)
# Others in which a job stands still, too: an alert is none too many.
STALL_TOO = ("dead_rank", "plugin_off", "requeued")
