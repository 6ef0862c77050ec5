"""Two jobs on two spines, each lane re-pathed by the plugin's own selector (the real one, as a program) and by the
receiver's rebalancer, in virtual time: how near both come to the best assignment of lanes to spines.

A ring of two ranks has a connection each way with two lanes. Lanes on a link share it by halves, thirds, and so on; a
connection sends over all of its lanes what they deliver, and a ring goes at the speed of its slower connection. So a
ring that is held up in one direction leaves room in the other, which the other ring takes: assignments carry 0.5, 0.67,
0.83 or all of what the spines can.
"""

import random
import subprocess
from collections import Counter, deque
from collections.abc import Callable
from functools import cache, partial
from math import exp
from pathlib import Path
from statistics import mean

from tests.bench.rows import Rows
from tests.fixtures.native.programs import native
from tests.unit.remediation.world import START

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import LaneOrder, LaneSample, Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.model import AgentState, State
from fabricpulse.remediation.receiver.state.transaction import Transaction

JOBS, LANES, SPINES, LINK = 2, 2, 2, 25e6  # bytes per second
DELAYS_S = (0.1, 0.5, 2.0, 10.0, 30.0)
_TICK_MS = 20
_SPEED = 125_000_000
# Of each tenth of a second; a lane has more or less than its part for about a second, by a third.
_UNFAIR = 0.12
CONFIG = "rules: []\nrebalance: {mode: auto, window_s: 6, settle_s: 2, cooldown_s: 10, quiet_s: 10}\n"
# (job, direction, lane) -> link.
Places = tuple[int, ...]


def _fill(lanes: list[tuple[int, int]], most: dict[int, float]) -> list[float]:
    """Rates of lanes (job, link) that all grow alike until their link is full or their job has what it takes."""
    rates, left, total = [0.0] * len(lanes), dict.fromkeys({link for _, link in lanes}, LINK), Counter[int]()
    growing = set(range(len(lanes)))
    while growing:
        on, of = Counter(lanes[i][1] for i in growing), Counter(lanes[i][0] for i in growing)
        room = [left[link] / n for link, n in on.items()]
        step = min(room + [(most[job] - total[job]) / n for job, n in of.items()])
        for i in growing:
            job, link = lanes[i]
            rates[i] += step
            left[link] -= step
            total[job] += step  # type: ignore[assignment]
        growing = {i for i in growing if left[lanes[i][1]] > 1 and total[lanes[i][0]] < most[lanes[i][0]] - 1}
    return rates


@cache
def carried(places: Places) -> tuple[float, tuple[tuple[float, ...], ...]]:
    """Bytes per second of both rings, one way; and those of each lane, by direction."""
    most = [dict.fromkeys(range(JOBS), 1e12) for _ in range(2)]
    for _ in range(60):
        rates, totals = [], []
        for way in range(2):
            lanes = [(j, places[(2 * j + way) * LANES + k]) for j in range(JOBS) for k in range(LANES)]
            rates.append(tuple(_fill(lanes, most[way])))
            totals.append([sum(rates[way][j * LANES : (j + 1) * LANES]) for j in range(JOBS)])
        jobs = [min(totals[0][j], totals[1][j]) for j in range(JOBS)]
        if all(totals[way][j] - jobs[j] < 100 for way in range(2) for j in range(JOBS)):
            break
        for way in range(2):
            for j in range(JOBS):
                if totals[way][j] > jobs[j] + 1:
                    most[way][j] = jobs[j]
    return sum(jobs), tuple(rates)


class _Lane:
    def __init__(self, salt: int) -> None:
        self.salt = salt
        self.port = next(port for port in range(20_000, 60_000) if self.link(port) == 0)
        self.repaths = self.troubles = self.port_before = 0
        self.delivered = self.reported = 0.0

    def link(self, port: int) -> int:
        return random.Random(self.salt * 100_003 + port).randrange(SPINES)


class _Selector:
    """The selector of one connection."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: list[str] = []

    def say(self, *words: object) -> None:
        self._lines.append(" ".join(map(str, words)))

    def ask(self, *words: object) -> int:
        self.say(*words)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n".join(self._lines) + "\n")
        self._process.stdin.flush()
        self._lines.clear()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Play:
    """One run. controller : whether the receiver may act. spread : whether lanes begin on any path, not all on one
    link. delay_s : how late the receiver learns what happens, and how late what it orders is done."""

    def __init__(
        self, program: Path, seed: int, *, controller: bool, spread: bool = False, delay_s: float = 0.0
    ) -> None:
        self._delay_s = delay_s
        # (due, what happens then), in order.
        self._mail: deque[tuple[float, Callable[[float], None]]] = deque()
        # (seconds of virtual time, lane, whether it was the receiver) of each new path.
        self.moved: list[tuple[float, int, bool]] = []
        self._chance = random.Random(seed)
        self._controller = controller
        self._lanes = [_Lane(self._chance.randrange(10**9)) for _ in range(2 * JOBS * LANES)]
        self._selectors = [_Selector(program) for _ in range(2 * JOBS)]
        self._reconciler = Reconciler(parse_config(CONFIG, ReceiverConfig, "bench"))
        self._state, self._ms = State(), 1000
        self._ordered: set[str] = set()
        if spread:
            for lane in self._lanes:
                lane.port = self._chance.randrange(1024, 65535)
        # How unfair links are to each lane at the moment, a logarithm.
        self._unfair = [0.0] * len(self._lanes)
        # Of each second, by what the best assignment carries.
        self.shares: list[float] = []

    @property
    def repaths(self) -> int:
        """New paths so far, of all lanes."""
        return sum(lane.repaths for lane in self._lanes)

    @property
    def plans(self) -> list[str]:
        """What became of the receiver's plans."""
        found = sorted(self._state.rebalances.values(), key=lambda plan: plan.created_at)
        return [f"{p.phase} {p.measured:.2f} of {p.predicted:.2f}" for p in found]

    def fights(self, since: float) -> int:
        """How often a lane was moved by the receiver and then by its plugin, beyond once for each lane: they undo what
        the other one does."""
        turns: Counter[int] = Counter()
        last: dict[int, bool] = {}
        for at, lane, by_receiver in self.moved:
            if at >= since:
                turns[lane] += last.get(lane, False) and not by_receiver
                last[lane] = by_receiver
        return sum(max(0, count - 1) for count in turns.values())

    def run(self, seconds: int) -> None:
        """Lets time pass."""
        for _ in range(seconds):
            total = 0.0
            for _ in range(1000 // _TICK_MS):
                self._ms += _TICK_MS
                if self._ms % 100 == 0:
                    self._unfair = [0.93 * u + self._chance.gauss(0, _UNFAIR) for u in self._unfair]
                total += self._tick()
            self.shares.append(total * _TICK_MS / 1000 / (SPINES * LINK))
            if self._controller:
                self._control(START + self._ms / 1000)
        for selector in self._selectors:
            selector.close()

    def _places(self) -> Places:
        return tuple(lane.link(lane.port) for lane in self._lanes)

    def _tick(self) -> float:
        places = self._places()
        total, rates = carried(places)
        got = self._unfair_rates(places, rates)
        now = self._ms * 1_000_000
        for number, selector in enumerate(self._selectors):
            waits = True
            for k in range(LANES):
                lane, rate, room = self._lane(number, k, places, rates)
                full = room <= 0.01 * LINK
                waits &= full
                lane.delivered += got[number * LANES + k] * _TICK_MS / 1000
                lane.troubles += full and self._chance.random() < 0.2
                busy = self._chance.random() < (0.95 if full else rate / (rate + room))
                rtt = 8_000_000 if full else 100_000
                state = (1, int(busy), int(lane.delivered), _SPEED, lane.troubles, rtt, 0, now)
                selector.say("s", k, 1, *state)
            waiting = int(waits and self._chance.random() < 0.9)
            move = selector.ask("v", LANES, waiting, now)
            if move >= 0:
                lane = self._lanes[number * LANES + move]
                port = lane.port_before if selector.ask("r") else None
                lane.port_before = lane.port
                self._move(number, move, port)
        return total

    def _unfair_rates(self, places: Places, rates: tuple[tuple[float, ...], ...]) -> list[float]:
        """What each lane delivers: more or less than its part; all lanes of a link together what the link does."""
        fair = [rates[at // LANES % 2][at // (2 * LANES) * LANES + at % LANES] for at in range(len(places))]
        weighed = [rate * exp(unfair) for rate, unfair in zip(fair, self._unfair, strict=True)]
        links = [(at // LANES % 2, link) for at, link in enumerate(places)]
        sums: dict[tuple[int, int], list[float]] = {link: [0.0, 0.0] for link in links}
        for link, rate, weight in zip(links, fair, weighed, strict=True):
            sums[link][0] += rate
            sums[link][1] += weight
        return [
            weight * sums[link][0] / max(1.0, sums[link][1])
            for link, weight in zip(links, weighed, strict=True)
        ]

    def _lane(
        self, number: int, k: int, places: Places, rates: tuple[tuple[float, ...], ...]
    ) -> tuple[_Lane, float, float]:
        """A lane of a connection, its rate, and what is left on its link."""
        job, way = divmod(number, 2)
        link = places[number * LANES + k]
        used = sum(
            rates[way][j * LANES + i]
            for j in range(JOBS)
            for i in range(LANES)
            if places[(2 * j + way) * LANES + i] == link
        )
        return self._lanes[number * LANES + k], rates[way][job * LANES + k], LINK - used

    def _move(self, number: int, k: int, port: int | None, *, by_receiver: bool = False) -> None:
        lane = self._lanes[number * LANES + k]
        lane.port = port or self._chance.randrange(1024, 65535)
        lane.repaths += 1
        self.moved.append((self._ms / 1000, number * LANES + k, by_receiver))
        self._selectors[number].say("m", k, 0, self._ms * 1_000_000)

    # --- the receiver --------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[Transaction], object]) -> None:
        transaction = Transaction(self._state)
        change(transaction)
        self._state = transaction.apply()

    def _control(self, now: float) -> None:
        places = self._places()
        _, rates = carried(places)
        rebalancer = self._reconciler.rebalancer
        for number in range(2 * JOBS):
            host, samples = f"h{number}", []
            for k in range(LANES):
                lane, rate, room = self._lane(number, k, places, rates)
                goodput, lane.reported = lane.delivered - lane.reported, lane.delivered
                full = room <= 0.01 * LINK
                samples.append(
                    LaneSample(
                        "1", f"{number:016x}", k, f"job{number // 2}", "rail0", lane.port, 500,
                        goodput, max(goodput, rate + room), 5e-3 if full else 1e-4, 0, lane.repaths, 10 * LINK,
                        1.0 if full else rate / (rate + room),
                    )
                )  # fmt: skip
            self._post(now, partial(self._reported, host, samples))
        while self._mail and self._mail[0][0] <= now:
            self._mail.popleft()[1](now)
        self._change(lambda t: rebalancer.reconcile(t, now))
        for number in range(2 * JOBS):
            for order in rebalancer.orders(self._state, f"h{number}", now):
                if order.op_id not in self._ordered:
                    self._ordered.add(order.op_id)
                    self._post(now, partial(self._carry_out, number, order))
        while self._mail and self._mail[0][0] <= now:
            self._mail.popleft()[1](now)

    def _post(self, now: float, what: Callable[[float], None]) -> None:
        self._mail.append((now + self._delay_s, what))

    def _reported(self, host: str, samples: list[LaneSample], now: float) -> None:
        agent = AgentState(host=host, seen_at=now, processes=1)
        self._change(lambda transaction: self._reconciler.observed.on_agent(transaction, agent, now))
        self._reconciler.evidence.add(host, samples, now)

    def _carry_out(self, number: int, order: LaneOrder, now: float) -> None:
        if order.operation == "lane.repath":
            self._move(number, order.lane, order.value, by_receiver=True)
        self._post(now, partial(self._answered, f"h{number}", Result(order.op_id, "applied", 1)))

    def _answered(self, host: str, result: Result, now: float) -> None:
        on_result = self._reconciler.rebalancer.on_result
        self._change(lambda transaction: on_result(transaction, host, result, now))


def selector(rows: Rows, runs: int, seconds: int = 240) -> None:
    """The plugin alone, and with the receiver, from lanes that are all on one link, or anywhere: the last quarter of
    each run."""
    program = native("plugin_path_selector")
    for case, options in (
        ("the plugin alone", {"controller": False}),
        ("and the receiver", {"controller": True}),
        ("and the receiver, lanes spread at first", {"controller": True, "spread": True}),
    ):
        shares, repaths, plans = [], [], Counter[str]()
        for seed in range(runs):
            play = Play(program, seed, **options)
            play.run(seconds)
            shares.append(mean(play.shares[-seconds // 4 :]))
            repaths.append(play.repaths)
            plans.update(plan.split()[0] for plan in play.plans)
        rows.report(
            f"{runs} runs of {seconds} s in virtual time, {case}",
            "rebalance_to_optimum_selector",
            mean(shares),
            "ratio",
            ">= 0.95" if options["controller"] else None,
            least=round(min(shares), 3),
            repaths=round(mean(repaths)),
            plans=dict(plans),
        )


def both_controllers(rows: Rows, runs: int, seconds: int = 600) -> None:
    """The plugins' selectors, which act at once, and the receiver, which is late: whether they fight. From lanes that
    are all on one link; of the second half of each run."""
    program, since = native("plugin_path_selector"), seconds / 2
    for delay_s in DELAYS_S:
        shares, fights, orders, moves = [], 0, [], []
        for seed in range(runs):
            play = Play(program, seed, controller=True, delay_s=delay_s)
            play.run(seconds)
            shares.append(mean(play.shares[seconds // 2 :]))
            fights += play.fights(since)
            late = [by_receiver for at, _, by_receiver in play.moved if at >= since]
            orders.append(sum(late))
            moves.append(len(late) - sum(late))
        rows.report(
            f"{runs} runs of {seconds} s in virtual time, the receiver late by {delay_s:g} s",
            "both_controllers_fights",
            fights,
            "1",
            "== 0",
            to_optimum=round(mean(shares), 3),
            moves_of_the_plugin=round(mean(moves), 1),
            orders_of_the_receiver=round(mean(orders), 1),
        )
