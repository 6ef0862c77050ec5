"""Settings of the mesh exporter that contradict one another are refused with what to do."""

import pytest

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import UserError
from fabricpulse.mesh.config import Evidence, MembershipSource, MeshConfig


def test_leaves_that_nobody_is_told_of_are_a_warning() -> None:
    """The file would be read for nothing, and the leaves stay without a name."""
    evidence = Evidence(lldp_file="/run/lldp.json")
    url, file = MembershipSource(url="http://c:9614/api/v1/membership"), MembershipSource(file="fleet.yaml")
    assert "evidence.lldp_file is not read" in MeshConfig(membership=file, evidence=evidence).warnings()[0]
    assert not MeshConfig(membership=url, evidence=evidence).warnings()
    assert not MeshConfig(membership=file).warnings()


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("{cross_peers: 11, peers: 10}", "cross_peers must not be above peers"),
        ("{down_after_s: 1, trains_per_s: 2}", "down_after_s must be at least six train periods"),
        ("{timestamps: hardwre}", "invalid enum value 'hardwre'; one of .*'hardware'"),
        ("{sweep: 1}", "sweep must be 0 or at least 2: with 1 no packet takes the main path"),
    ],
)
def test_contradictions_are_refused(tmp_path, probe: str, said: str) -> None:
    """Evidence of a main path without packets would be refused by the coordinator, again and again."""
    path = tmp_path / "mesh.yaml"
    path.write_text(f"probe: {probe}\n")
    with pytest.raises(UserError, match=said):
        load_config(path, MeshConfig)
