"""Flaps, wired up: link messages and polls into the tracker, transitions into the event log, state onto disk."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fabricpulse.core.event_log import EventLog
from fabricpulse.core.log import get_logger
from fabricpulse.hostinfo.device_filter import DeviceFilter
from fabricpulse.hostinfo.inventory import Inventory, Netdev
from fabricpulse.hostinfo.netlink.link_messages import LinkMessage
from fabricpulse.nic.flap_store import load_links, save_links
from fabricpulse.nic.flap_tracker import (
    OUTAGE_BOUNDS_S,
    FlapTracker,
    LinkState,
    Observation,
    Source,
    Transition,
)
from fabricpulse.nic.link_monitor import LinkMonitor

log = get_logger(__name__)

# How long a change may wait before it is on disk. What is lost then are times and durations, never counts.
SAVE_AFTER_S = 1.0


class FlapService:
    """Everything about flaps of one host. All methods are for the event loop's thread, except `snapshot`.

    clock : host time in seconds. state_path : where the state is kept, None for nowhere. on_change : called with the
    name of a link that has changed or whose addresses have (the GID table may have moved). on_unknown : called when a
    link has appeared that the inventory does not have.
    """

    def __init__(
        self,
        wanted: DeviceFilter,
        clock: Callable[[], float],
        event_log: EventLog,
        state_path: Path | None,
        boot_id: str,
        poll_s: float,
        on_change: Callable[[str], None],
        on_unknown: Callable[[], None],
    ) -> None:
        self._wanted = wanted
        self._clock = clock
        self._event_log = event_log
        self._state_path = state_path
        self._on_change = on_change
        self._on_unknown = on_unknown
        self._netdevs: dict[str, Netdev] = {}
        self._names: dict[int, str] = {}
        self._ports: dict[str, tuple[str, str, str]] = {}
        self._started = False
        self._stopped = False
        self._save_handle: asyncio.TimerHandle | None = None
        self.events: Counter[str] = Counter({"rtnetlink": 0, "poll": 0})
        self.overruns: Counter[str] = Counter({"rtnetlink": 0})
        self.is_live = False
        self.tracker = FlapTracker(
            OUTAGE_BOUNDS_S, boot_id, load_links(state_path) if state_path is not None else {}
        )
        self._monitor = LinkMonitor(self._on_link, self._on_address, self._on_overrun, self._poll_all, poll_s)

    async def start(self, inventory: Inventory, *, follow: bool = True) -> None:
        """Takes in how the links are, then their events; `follow` False: no events.

        Without netlink only polls remain, and that is logged.
        """
        self.use(inventory)
        if follow:
            try:
                await self._monitor.start()
                self.is_live = True
            except (OSError, TimeoutError) as error:
                log.error("no link events: flaps are counted at each scrape", error=str(error))
        self._started = True
        self.poll(inventory.netdevs, "start")

    def stop(self) -> None:
        """Takes in what has arrived, and keeps the state, for the last time: it is another one's file from now on."""
        self._monitor.stop()
        self._stopped = True
        if self._save_handle is not None:
            self._save_handle.cancel()
            self._save_handle = None
        self._save()
        self._event_log.close()

    def use(self, inventory: Inventory) -> None:
        """The inventory that names belong to."""
        self._netdevs = {netdev.name: netdev for netdev in inventory.netdevs}

    def poll(self, netdevs: Iterable[Netdev], source: Source = "poll") -> None:
        """Compares the kernel's counts in sysfs with what is known."""
        for netdev in netdevs:
            up_count, down_count = (
                _count(netdev.path, "carrier_up_count"),
                _count(netdev.path, "carrier_down_count"),
            )
            if up_count is None or down_count is None:
                continue
            state = self.tracker.links.get(netdev.name)
            if state is not None and state.present:
                if (
                    state.up_count == up_count
                    and state.down_count == down_count
                    and state.ifindex == netdev.ifindex
                ):
                    continue
                # Which way the carrier is follows from the counts; the carrier file would take the lock of rtnetlink.
                carrier = state.carrier ^ bool(
                    (up_count + down_count - state.up_count - state.down_count) % 2
                )
            else:
                carrier = _read(netdev.path, "carrier") == b"1"
            seen = Observation(netdev.name, netdev.ifindex, carrier, up_count, down_count, source)
            if source == "poll" and state is not None:
                self.events["poll"] += 1
            self._take(seen)

    def port_event(self, device: str, port: int, up: bool) -> None:
        """A verbs event about a port. Counts only ports without a netdev: rtnetlink follows the others' links."""
        name = port_link(device, port)
        if name in self._ports:
            self._take(Observation(name, 0, up, None, None, "event"))

    def port_states(self, states: Mapping[tuple[str, int], bool]) -> None:
        """How the ports without a netdev are now: what the verbs events have not reported is counted from it."""
        self._ports = {port_link(*key): (key[0], key[0], str(key[1])) for key in states}
        for (device, port), up in states.items():
            name = port_link(device, port)
            known = self.tracker.links.get(name)
            if known is None or not known.present or known.carrier != up:
                source: Source = "poll" if known is not None and known.present else "start"
                self._take(Observation(name, 0, up, None, None, source))

    def record(self, event: str, labels: tuple[str, str, str], **fields: object) -> None:
        """Writes an event of another source into the event log."""
        self._append(self._clock(), event, labels, **fields)

    def _append(self, time_s: float, event: str, labels: tuple[str, str, str], **fields: object) -> None:
        device, rdma_device, port = labels
        where = {"device": device, "rdma_device": rdma_device, "port": port}
        self._event_log.append(round(time_s * 1e9), event, **where, **fields)

    def labels(self, link: str) -> tuple[str, str, str]:
        """(device, rdma_device, port) of a link, as far as they are known."""
        known = self._netdevs.get(link)
        if known is not None:
            return known.port_labels
        return self._ports.get(link, (link, "", ""))

    def series_labels(self, link: str) -> tuple[str, str, str]:
        """As `labels`, for series, which must stay the same for as long as the link exists.

        A netdev is there before its RDMA device and has one label; only ports without a netdev need all three.
        """
        return self._ports.get(link, (link, "", ""))

    def snapshot(self) -> dict[str, LinkState]:
        """The links that exist and are exported. Safe from any thread: the values are read, not changed."""
        names = self._netdevs.keys() | self._ports.keys()
        return {name: state for name, state in self.tracker.present().items() if name in names}

    def _poll_all(self) -> None:
        self.poll(self._netdevs.values())

    def _on_link(self, message: LinkMessage, source: Source) -> None:
        name = message.name or self._names.get(message.ifindex, "")
        if not name:
            return
        if message.removed:
            self._names.pop(message.ifindex, None)
        else:
            self._names[message.ifindex] = name
        if name not in self._netdevs:
            if not self._wanted.allows_netdev(name):
                return
            if source == "event" and not message.removed:
                self._on_unknown()
        if source == "event":
            self.events["rtnetlink"] += 1
        elif not self._started:
            source = "start"
        carrier = message.carrier and not message.removed
        seen = Observation(
            name, message.ifindex, carrier, message.up_count, message.down_count, source, message.removed
        )
        self._take(seen, admin_up=message.admin_up)

    def _take(self, seen: Observation, **fields: object) -> None:
        now_s = self._clock()
        found = self.tracker.observe(seen, now_s)
        # What the inventory does not have may be excluded by the name of its RDMA device: counted, not reported.
        if seen.link in self._netdevs or seen.link in self._ports:
            for transition in found:
                self._write(transition, fields)
        if found:
            self._on_change(seen.link)
            self._save_soon()

    def _write(self, transition: Transition, fields: dict[str, object]) -> None:
        more: dict[str, object] = {"source": "rtnetlink" if transition.source != "poll" else "poll", **fields}
        if transition.source in ("start", "resync"):
            more["time_known"] = False
        if transition.count != 1 or transition.kind == "missed":
            more["count"] = transition.count
        if transition.down_s is not None:
            more["down_s"] = round(transition.down_s, 6)
        event = {"missed": "downs_missed"}.get(transition.kind, f"link_{transition.kind}")
        self._append(transition.time_s, event, self.labels(transition.link), **more)
        log.info("link event", event_kind=event, device=transition.link, **more)

    def _on_address(self, ifindex: int) -> None:
        name = self._names.get(ifindex)
        if name is not None:
            self._on_change(name)

    def _on_overrun(self) -> None:
        self.overruns["rtnetlink"] += 1
        log.warning("link events were lost, reading all links anew")

    def _save_soon(self) -> None:
        if self._state_path is not None and self._save_handle is None and not self._stopped:
            self._save_handle = asyncio.get_running_loop().call_later(SAVE_AFTER_S, self._save)

    def _save(self) -> None:
        self._save_handle = None
        if self._state_path is None:
            return
        try:
            save_links(self._state_path, self.tracker.links)
        except OSError as error:
            log.error("flap state cannot be kept", file=str(self._state_path), error=str(error))


def port_link(device: str, port: int) -> str:
    """The tracker's name of a port without a netdev; no netdev can have it."""
    return f"{device}/{port}"


def _read(path: str, name: str) -> bytes | None:
    try:
        descriptor = os.open(f"{path}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 32).strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _count(path: str, name: str) -> int | None:
    raw = _read(path, name)
    # The kernel's counts have 32 bits; what has more is none, and taken in it would be the highest seen for good.
    return int(raw) if raw is not None and raw.isdigit() and len(raw) <= 10 else None
