"""The node agent: asks the receiver what shall be, and sees that it is.

Two loops. One asks and reports; one looks after the jobs: whatever the journal says must hold in every process that
has the plugin, also in one that started a moment ago, also while the receiver is away.
"""

import asyncio
import ssl
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import aiohttp
import msgspec

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.common import BUILD_INFO
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import plugin_dir
from fabricpulse.core.waiting import wait_at_most
from fabricpulse.core.web.server import WebServer
from fabricpulse.remediation import metrics
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.journal import NodeJournal
from fabricpulse.remediation.node.mesh import connected_nics
from fabricpulse.remediation.node.plugins import Plugins, Survey
from fabricpulse.remediation.protocol import DesiredNic, DesiredState, Report, Result

log = get_logger(__name__)

_POLL_WAIT_S = 20
_RETRY_S = 1.0


class NodeAgent:
    """One agent; `run` is its life."""

    def __init__(self, config: NodeConfig, life: Lifetime) -> None:
        self._config = config
        self._life = life
        self._journal = NodeJournal(Path(config.journal))
        self._plugins = Plugins(plugin_dir(), config.call_timeout_s, config.verify_timeout_s)
        self._desired = self._journal.desired()
        self._epoch = self._journal.epoch()
        self._version = ""
        self._survey = Survey()
        self._settled: set[str] = set()
        self._results: dict[str, Result] = {}
        self._dry_runs: dict[str, DesiredNic] = {}
        self._report_now = asyncio.Event()
        self._look_now = asyncio.Event()
        self._connected = False

    async def run(self, options: DaemonOptions) -> None:
        """Works until told to stop. What it has applied stays applied."""
        server = WebServer(
            "fabricpulse remediation node agent", self._life, self._metrics, web_config=options.web_config
        )
        await server.start(options.listen)
        connector = aiohttp.TCPConnector(ssl=_client_tls(self._config))
        async with aiohttp.ClientSession(connector=connector, headers=_token_header(self._config)) as session:
            tasks = [
                asyncio.create_task(work)
                for work in (
                    self._ask_forever(session),
                    self._report_forever(session),
                    self._look_after_forever(),
                )
            ]
            self._life.ready()
            stop = asyncio.create_task(self._life.stopped())
            await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in (stop, *tasks):
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        await server.stop()
        self._journal.close()

    # --- asking and reporting ------------------------------------------------------------------------------------

    def _url(self, what: str) -> str:
        return f"{self._config.receiver.rstrip('/')}/api/v1/agents/{self._config.host_name}/{what}"

    async def _ask_forever(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                params = {"version": self._version, "wait": str(_POLL_WAIT_S)}
                timeout = aiohttp.ClientTimeout(total=_POLL_WAIT_S + 10, connect=3)
                async with session.get(self._url("desired"), params=params, timeout=timeout) as answer:
                    if answer.status != 200:
                        raise _RefusedError(f"HTTP {answer.status}")
                    desired = msgspec.json.decode(await answer.read(), type=DesiredState)
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, _RefusedError) as error:
                self._set_connected(False, str(error) or type(error).__name__)
                await asyncio.sleep(_RETRY_S)
                continue
            self._set_connected(True)
            self._accept(desired)

    def _set_connected(self, connected: bool, why: str = "") -> None:
        if connected != self._connected:
            if connected:
                log.info("receiver reached", url=self._config.receiver)
            else:
                log.warning(
                    "receiver not reached, NICs stay as they are", url=self._config.receiver, reason=why
                )
        self._connected = connected

    def _accept(self, desired: DesiredState) -> None:
        if desired.epoch < self._epoch:
            log.error(
                "receiver has an older epoch than one seen before, ignored",
                epoch=desired.epoch,
                seen=self._epoch,
            )
            return
        new = [
            nic
            for nic in desired.nics
            if not nic.dry_run
            and (nic.device not in self._desired or nic.generation > self._desired[nic.device].generation)
        ]
        if new or desired.epoch > self._epoch:
            self._journal.accept(desired.epoch, new)
        if desired.epoch > self._epoch:
            # A receiver that has started anew may have missed our last words.
            self._settled.clear()
        self._epoch = desired.epoch
        self._version = desired.version
        for nic in new:
            log.info(
                "desired state",
                device=nic.device,
                desired=nic.desired,
                generation=nic.generation,
                op_id=nic.op_id,
            )
            self._desired[nic.device] = nic
        self._dry_runs = {nic.op_id: nic for nic in desired.nics if nic.dry_run}
        self._look_now.set()

    async def _report_forever(self, session: aiohttp.ClientSession) -> None:
        while True:
            self._report_now.clear()
            results = list(self._results.values())
            connected: dict[str, bool] = {}
            if self._config.mesh_url:
                connected = await connected_nics(session, self._config.mesh_url)
            report = Report(
                processes=self._survey.processes,
                devices=self._survey.devices,
                connected=connected,
                results=results,
            )
            try:
                timeout = aiohttp.ClientTimeout(total=10, connect=3)
                async with session.post(
                    self._url("report"), data=msgspec.json.encode(report), timeout=timeout
                ) as answer:
                    sent = answer.status == 200
            except (aiohttp.ClientError, TimeoutError, OSError):
                sent = False
            if sent:
                for result in results:
                    if self._results.get(result.op_id) == result:
                        del self._results[result.op_id]
            await wait_at_most(self._report_now, self._config.report_interval_s if sent else _RETRY_S)

    # --- the jobs ------------------------------------------------------------------------------------------------

    async def _look_after_forever(self) -> None:
        while True:
            self._look_now.clear()
            await self._look_after()
            await wait_at_most(self._look_now, self._config.scan_interval_s)

    async def _look_after(self) -> None:
        for op_id, nic in self._dry_runs.items():
            if op_id not in self._settled:
                self._tell(await asyncio.to_thread(self._plugins.check, nic))
                self._settled.add(op_id)
        for nic in list(self._desired.values()):
            if nic.op_id not in self._settled:
                result = await asyncio.to_thread(self._plugins.apply, nic)
                log.info("applied" if result.verified else result.outcome, **msgspec.structs.asdict(result))
                self._settled.add(nic.op_id)
                self._tell(result)
        self._survey = await asyncio.to_thread(self._plugins.survey)
        for nic in list(self._desired.values()):
            # A process that started after the decision, or lost it.
            wanted = nic.desired == "avoid"
            strays = [
                p for p, avoided in self._survey.sockets.items() if avoided.get(nic.device, wanted) != wanted
            ]
            if strays and self._desired.get(nic.device) == nic:
                result = await asyncio.to_thread(self._plugins.apply, nic)
                if result.outcome != "applied":
                    log.warning("a process does not follow", **msgspec.structs.asdict(result))

    def _tell(self, result: Result) -> None:
        self._results[result.op_id] = result
        self._report_now.set()

    async def _metrics(self) -> bytes:
        out = Exposition()
        out.add(BUILD_INFO, (version("fabricpulse"), "remediation-node", python_version()), 1)
        out.add(metrics.AGENT_CONNECTED, (), int(self._connected))
        out.add(metrics.AGENT_PROCESSES, (), self._survey.processes)
        for device, nic in sorted(self._desired.items()):
            out.add(metrics.AGENT_AVOIDED, (device,), int(nic.desired == "avoid"))
        for result in (
            "applied",
            "duplicate",
            "error",
            "last_healthy_lane",
            "stale_generation",
            "unknown_device",
        ):
            out.add(metrics.AGENT_CALLS, (result,), self._plugins.calls[result])
        return out.render()


class _RefusedError(Exception):
    """The receiver answered, but not with a desired state."""


def _client_tls(config: NodeConfig) -> ssl.SSLContext | bool:
    if not config.receiver.startswith("https://"):
        return True
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot load ca_file, cert_file or key_file: {error}") from error
    return context


def _token_header(config: NodeConfig) -> dict[str, str]:
    if not config.token_file:
        return {}
    try:
        token = Path(config.token_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"cannot read token_file {config.token_file}: {error.strerror}") from error
    return {"Authorization": f"Bearer {token}"}
