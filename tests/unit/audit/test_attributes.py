"""The list of attributes, which the rules' odd-one-out takes its metrics from."""

import re
from pathlib import Path

from fabricpulse.audit.host.attributes import ATTRIBUTES

ROOT = Path(__file__).parents[3]


def test_rules_compare_attributes_of_the_list() -> None:
    """The metrics that the rules compare NICs by are those of attributes of NICs in the list, and of no others."""
    source = (ROOT / "mixins" / "rules" / "hardware.libsonnet").read_text()
    table = re.search(r"local alike = \{(.*?)\n\s*\},", source, re.S)
    assert table is not None
    compared = set(re.findall(r"'(fabricpulse_\w+)'", table[1]))
    ours = {attribute.name: attribute.metric for attribute in ATTRIBUTES if attribute.scope == "nic"}
    assert compared <= set(ours.values())
    assert {ours[name] for name in ("mtu", "speed", "gid_index", "pfc", "trust")} == compared
