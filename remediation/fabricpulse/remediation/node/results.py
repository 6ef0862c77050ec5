"""What became of operations on this host, and what of that the receiver does not know yet."""

import asyncio
from collections.abc import Collection

import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.remediation.protocol import MAX_NICS, Result

log = get_logger(__name__)


class Results:
    """latest : result of each operation, by op_id. unreported : those that no receiver has confirmed. is_new : set when
    there is one more."""

    def __init__(self) -> None:
        self.latest: dict[str, Result] = {}
        self.unreported: dict[str, Result] = {}
        self.is_new = asyncio.Event()

    def record(self, result: Result) -> None:
        """A result, unless it is known."""
        if self.latest.get(result.op_id) == result:
            return
        self.latest[result.op_id] = result
        self.unreported[result.op_id] = result
        self.is_new.set()
        log.info("action ended", **msgspec.structs.asdict(result))

    def to_report(self) -> list[Result]:
        """As many as a report may have."""
        return list(self.unreported.values())[:MAX_NICS]

    def reported(self, results: Collection[Result]) -> None:
        """The receiver has these. One that has changed meanwhile is still to be reported."""
        for result in results:
            if self.unreported.get(result.op_id) == result:
                del self.unreported[result.op_id]

    def report_all_again(self) -> None:
        """To a receiver that may have missed the last ones."""
        self.unreported |= self.latest
        self.is_new.set()

    def keep(self, op_ids: Collection[str]) -> None:
        """Forgets the results of operations that nobody asks for any more."""
        self.latest = {op_id: result for op_id, result in self.latest.items() if op_id in op_ids}
