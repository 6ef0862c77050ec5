"""What the receiver wants of this host: fetched, checked, in the journal before anything is done about it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.epoch_fence import EpochFence
from fabricpulse.remediation.node.held import newer_of
from fabricpulse.remediation.node.journal import JournalError, NodeJournal
from fabricpulse.remediation.node.receiver_client import RETRY_S, ReceiverError
from fabricpulse.remediation.node.results import Results
from fabricpulse.remediation.protocol import DesiredNic, DesiredState, LaneOrder, end_of

log = get_logger(__name__)


class DesiredSource(Protocol):
    """Where the desired state comes from, as of ReceiverClient."""

    async def fetch_desired(self, version: str) -> DesiredState:
        """The desired state, as soon as it is another than `version`. Raises ReceiverError."""


class Intake:
    """desired : newest desired state, by device. waiting : op_id of what was accepted and not carried out -> until when
    it may be. done_before : carried out before this start. orders : operations on lanes, by op_id, and until when they
    may be begun. problem : why the journal cannot be written, "" while it can. is_new : set when there is more to do.
    """

    def __init__(self, config: NodeConfig, results: Results, has_not: Callable[[str], bool]) -> None:
        """has_not : whether the host is known not to have a NIC. Raises UserError when the journal cannot be used."""
        signed = bool(config.receiver_keys)
        self.journal = NodeJournal(Path(config.journal), signed=signed)
        self._results = results
        self._has_not = has_not
        self.desired = self.journal.desired()
        self.waiting = self.journal.waiting()
        # A receiver that has them as done undoes them no more when they are refused.
        self.done_before = {nic.op_id for nic in self.desired.values()} - self.waiting.keys()
        self.dry_runs: dict[str, DesiredNic] = {}
        self.orders: dict[str, LaneOrder] = {}
        self.orders_end = 0.0
        self.report_lanes = False
        self.problem = ""
        self.is_new = asyncio.Event()
        self._ignored = ""
        # Operations that are carried out, which the journal does not say yet.
        self._done: list[str] = []
        self._fence = EpochFence(self.journal.epoch(), time.time, time.monotonic, signed=signed)
        self._epoch = self._fence.epoch
        self._version = ""

    async def fetch_forever(self, receiver: DesiredSource) -> None:
        """Takes over what the receiver wants, again and again."""
        while True:
            try:
                desired = await receiver.fetch_desired(self._version)
            except ReceiverError:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                accepted = self.accept(desired)
            except JournalError as error:
                self._journal_failed(error)
                accepted = False
            if accepted:
                self.is_new.set()
            else:
                await asyncio.sleep(RETRY_S)

    def accept(self, desired: DesiredState) -> bool:
        """Takes over the desired state, journal first. False for a receiver with an older epoch.

        Raises JournalError."""
        if not self._fence.admits(desired.epoch):
            return False
        another = self._fence.epoch != self._epoch
        new, ignored = newer_of(desired.nics, self.desired, self._has_not, time.time())
        if ignored and ignored != self._ignored:
            log.error("a part of what the receiver says is ignored", reason=ignored)
        self._ignored = ignored
        failpoints.reach("agent.before_journal")
        if new or another or self.problem:
            self.journal.accept(self._fence.epoch, new, desired.not_after)
            self._journal_works()
        failpoints.reach("agent.after_journal")
        if another:
            # A receiver that has restarted may have missed the last results.
            self._results.report_all_again()
        self._epoch, self._version = self._fence.epoch, desired.version
        for nic in new:
            log.info("desired state received", **msgspec.structs.asdict(nic))
            self.desired[nic.device] = nic
            self.waiting[nic.op_id] = end_of(nic, desired.not_after)
        self.dry_runs = {nic.op_id: nic for nic in desired.nics if nic.dry_run}
        self.report_lanes = desired.report_lanes
        self.orders = {order.op_id: order for order in desired.lanes}
        self.orders_end = desired.not_after
        current = {nic.op_id for nic in self.desired.values()} | self.dry_runs.keys() | self.orders.keys()
        self.waiting = {op_id: end for op_id, end in self.waiting.items() if op_id in current}
        self._results.keep(current)
        return True

    def carried_out(self, op_id: str) -> None:
        """The operation is done: from now on it only has to be kept up."""
        if self.waiting.pop(op_id, None) is not None:
            self._done.append(op_id)
            self.note_done()

    def note_done(self) -> None:
        """In the journal, now or as soon as that can be written."""
        try:
            for op_id in list(self._done):
                self.journal.carried_out(op_id)
                self._done.remove(op_id)
                self._journal_works()
        except JournalError as error:
            self._journal_failed(error)

    def _journal_failed(self, error: JournalError) -> None:
        """Nothing new is taken over before it is in the journal; what was goes on."""
        if not self.problem:
            log.error("journal cannot be written, jobs are kept as they are", error=str(error))
        self.problem = str(error)

    def _journal_works(self) -> None:
        if self.problem:
            log.info("journal takes writes again")
        self.problem = ""

    def close(self) -> None:
        """Closes the journal."""
        self.journal.close()
