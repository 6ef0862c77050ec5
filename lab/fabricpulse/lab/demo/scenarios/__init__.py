"""The scenarios of `fabricpulse demo --scenario NAME`.

To add one: write a subclass of `Scenario` in a file of its own and name it in `SCENARIOS`.
"""

from fabricpulse.lab.demo.scenarios.base import Scenario
from fabricpulse.lab.demo.scenarios.clock_step import ClockStep
from fabricpulse.lab.demo.scenarios.contention import Contention
from fabricpulse.lab.demo.scenarios.dead_host import DeadHost
from fabricpulse.lab.demo.scenarios.dead_leaf import DeadLeaf
from fabricpulse.lab.demo.scenarios.flap import Flap
from fabricpulse.lab.demo.scenarios.gray_loss import GrayLoss
from fabricpulse.lab.demo.scenarios.hang import Hang
from fabricpulse.lab.demo.scenarios.incast import Incast
from fabricpulse.lab.demo.scenarios.misrouted import Misrouted
from fabricpulse.lab.demo.scenarios.mtu import SmallMtu
from fabricpulse.lab.demo.scenarios.slow_path import SlowPath
from fabricpulse.lab.demo.scenarios.straggler import Straggler

SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Flap,
        GrayLoss,
        SlowPath,
        Contention,
        Incast,
        Misrouted,
        SmallMtu,
        DeadHost,
        DeadLeaf,
        Hang,
        Straggler,
        ClockStep,
    )
}
