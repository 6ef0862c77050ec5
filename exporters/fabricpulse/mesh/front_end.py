"""Whether this host's front-end network works: the way to Prometheus, Alertmanager and the coordinator.

A dead front-end network looks from outside like a dead host, and from inside like dead servers. The probes of the rails
say that the host lives; this says that it is the front-end. Each round tries a TCP connection to every server that this
exporter uses: any answer, a refusal too, proves that the network works.
"""

import asyncio
import ipaddress
import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from fabricpulse.core.log import get_logger
from fabricpulse.mesh.config import MeshConfig
from fabricpulse.mesh.snapshot import HealthState

log = get_logger(__name__)

MISSED_ROUNDS = 3
_HTTP_PORTS = {"http": 80, "https": 443}


class FrontEndHealth:
    """Pure. Down after `MISSED_ROUNDS` rounds in a row without an answer; unknown until the first answer.

    disconnects : how often it went down. down_s : how long it was down in all, without an outage that lasts.
    """

    def __init__(self) -> None:
        self.state = HealthState.UNKNOWN
        self.disconnects = 0
        self.down_s = 0.0
        self._missed = 0
        self._answered_at = 0.0

    def update(self, answered: bool, on_time: bool, now: float) -> bool:
        """One round is over. Returns whether the state has gone from up to down or back.

        on_time : the round did not take longer than its time limit; a stalled host cannot judge the silence of others.
        now : monotonic seconds.
        """
        if answered:
            was_down = self.state == HealthState.DOWN
            if was_down:
                self.down_s += now - self._answered_at
            self.state, self._missed, self._answered_at = HealthState.UP, 0, now
            return was_down
        if not on_time:
            self._missed = 0
            return False
        self._missed += 1
        if self.state != HealthState.UP or self._missed < MISSED_ROUNDS:
            return False
        self.state = HealthState.DOWN
        self.disconnects += 1
        return True

    def silent_s(self, now: float) -> float:
        """Seconds since the last answer; 0 while unknown."""
        return now - self._answered_at if self.state != HealthState.UNKNOWN else 0.0


def targets_of(config: MeshConfig) -> tuple[tuple[str, int], ...]:
    """Host and port of every server on the front-end network: those configured, Alertmanagers, the coordinator.

    Loopback addresses are left out: they answer without any network.
    """
    urls = [*config.alerting.alertmanagers, *([config.membership.url] if config.membership.url else [])]
    found: dict[tuple[str, int], None] = {}
    for url in (*(f"//{target}" for target in config.front_end.targets), *urls):
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _HTTP_PORTS.get(parts.scheme, 80)
        with suppress(ValueError):
            if ipaddress.ip_address(host).is_loopback:
                continue
        if host and host != "localhost":
            found[host, port] = None
    return tuple(found)


class FrontEndWatch:
    """Plays the rounds. changed(connected, outage_s) is called when the state changes."""

    def __init__(
        self,
        targets: Sequence[tuple[str, int]],
        interval_s: float,
        changed: Callable[[bool, float], None],
    ) -> None:
        """interval_s : between two rounds, and the time limit of each."""
        self.health = FrontEndHealth()
        # What the last try of each target gave; None = it answers.
        self.results: dict[tuple[str, int], str | None] = dict.fromkeys(targets, "not tried yet")
        self._interval_s = interval_s
        self._changed = changed
        self._addresses: dict[str, str] = {}
        self._lookups: dict[str, asyncio.Task[str | OSError]] = {}

    async def run(self) -> None:
        """Rounds until cancelled; returns at once when there are no servers."""
        targets = list(self.results)
        # Another server each round, and each host begins elsewhere: N hosts do not all ask all servers all the time.
        first = random.randrange(len(targets)) if targets else 0  # noqa: S311 - no secret
        while targets:
            began = time.monotonic()
            first = (first + 1) % len(targets)
            if await self._ask([targets[first]]):
                await self._ask([target for target in targets if target != targets[first]])
            results = self.results.values()
            now = time.monotonic()
            silent_s = self.health.silent_s(now)
            if self.health.update(None in results, now - began < 1.5 * self._interval_s, now):
                connected = self.health.state == HealthState.UP
                if connected:
                    log.info("front-end network connected", outage_s=round(silent_s, 3))
                else:
                    log.warning("front-end network disconnected", answers=self.described())
                self._changed(connected, silent_s)
            await asyncio.sleep(max(began + self._interval_s - now, 0))

    async def _ask(self, targets: Sequence[tuple[str, int]]) -> bool:
        """Tries the targets. Returns whether none of them answers."""
        outcomes = await asyncio.gather(*(self._try(host, port) for host, port in targets))
        self.results.update(zip(targets, outcomes, strict=True))
        return None not in outcomes

    def described(self) -> dict[str, str | None]:
        """What each target gave in the last round, None = it answers."""
        return {
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}": answer
            for (host, port), answer in self.results.items()
        }

    async def _try(self, host: str, port: int) -> str | None:
        """None if something at the target answers, else why not."""
        try:
            async with asyncio.timeout(self._interval_s):
                _, writer = await asyncio.open_connection(await self._address(host), port)
                writer.close()
        except ConnectionRefusedError:
            return None
        except TimeoutError:
            self._addresses.pop(host, None)
            return f"no answer within {self._interval_s:g} s"
        except OSError as error:
            self._addresses.pop(host, None)
            return error.strerror or str(error)
        return None

    async def _address(self, host: str) -> str:
        """The address of a host, kept until it fails: the name server may be on the network that is watched."""
        if host not in self._addresses:
            # A look-up blocks a thread for longer than a round; a second one would take another thread.
            if host not in self._lookups:
                self._lookups[host] = asyncio.create_task(_look_up(host))
            found = await asyncio.shield(self._lookups[host])
            self._lookups.pop(host, None)
            if isinstance(found, OSError):
                raise found
            self._addresses[host] = found
        return self._addresses[host]


async def _look_up(host: str) -> str | OSError:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError:  # an empty label, or one above 63 characters
        return OSError(f"{host} is no host name")
    return str(found[0][4][0])
