"""A GPU fleet on one machine: `from fabricpulse.lab import Lab`. See lab/README.md."""

from fabricpulse.lab.channel import LabClosedError, LabUnavailableError
from fabricpulse.lab.fabric import Fabric
from fabricpulse.lab.faults import Fault, Flap, LinkDown, LinkEvent, Port
from fabricpulse.lab.lab import Lab
from fabricpulse.lab.load import Load
from fabricpulse.lab.node import Host, Link, Nic, Node, Spine
from fabricpulse.lab.process import LabProcess

__all__ = [
    "Fabric",
    "Fault",
    "Flap",
    "Host",
    "Lab",
    "LabClosedError",
    "LabProcess",
    "LabUnavailableError",
    "Link",
    "LinkDown",
    "LinkEvent",
    "Load",
    "Nic",
    "Node",
    "Port",
    "Spine",
]
