"""The demo's servers are configured as shipped."""

from pathlib import Path

import yaml

from fabricpulse.lab.demo.servers import alertmanager_config

ROOT = Path(__file__).parents[3]


def test_alertmanager_is_the_shipped_one() -> None:
    """Routes and inhibition are those of deploy/alertmanager.yml; only the addresses of receivers differ. Where lanes
    may get other paths, the route of its comment comes first."""
    shipped = yaml.safe_load((ROOT / "deploy" / "alertmanager.yml").read_text())
    config = yaml.safe_load(
        alertmanager_config("http://10.0.0.1:9615/api/v1/alertmanager", "http://127.0.0.1:9099/")
    )

    assert config["route"] == shipped["route"]
    text = (ROOT / "deploy" / "alertmanager.yml").read_text()
    lines = text[text.index("# For a rule with lane.repath") :].splitlines()[1:7]
    route = yaml.safe_load("\n".join(line.replace("# ", "", 1) for line in lines))
    with_paths = yaml.safe_load(
        alertmanager_config("http://10.0.0.1:9615/", "http://10.0.0.1/", repaths=True)
    )
    assert with_paths["route"] == shipped["route"] | {"routes": route + shipped["route"]["routes"]}
    assert config["inhibit_rules"] == shipped["inhibit_rules"] != []
    webhooks = {receiver["name"]: receiver.get("webhook_configs") for receiver in config["receivers"]}
    assert webhooks == {
        "on-call": [{"url": "http://127.0.0.1:9099/", "send_resolved": True}],
        "dead-mans-switch": None,
        "remediation": [{"url": "http://10.0.0.1:9615/api/v1/alertmanager", "send_resolved": True}],
    }
