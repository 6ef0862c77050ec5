"""The operator's commands against a real receiver: exit codes, JSON, TLS with client certificates, tokens."""

import json
import subprocess
import sys
from pathlib import Path

import bcrypt
import pytest
import trustme
import yaml
from tests.fixtures.in_process import command
from tests.fixtures.remediation.stack import Stack, alert, kill, request, webhook
from tests.fixtures.waiting import wait_for


def run(stack: Stack, *arguments: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """One command; `replay` and `check` are processes of their own."""
    return command("remediation", *arguments, "--url", url or stack.url)


def test_status_says_whether_remediation_can_act(stack):
    """3 without an agent, 0 with one, 3 while paused, 1 when nobody answers; the reason is printed."""
    stack.start_receiver()
    stack.wait_receiver()
    found = run(stack, "status")
    assert (found.returncode, "no agent has reported" in found.stdout) == (3, True)
    stack.start_plugin()
    stack.start_agent()
    stack.wait_agent()
    assert run(stack, "status").returncode == 0
    assert "next: nothing: no alert fires" in run(stack, "explain", "h0", "rail0").stdout
    assert run(stack, "pause", "--reason", "[/x] \x1b[2J upgrade").returncode == 0
    found = run(stack, "status")
    assert found.returncode == 3
    assert "[/x] \\x1b[2J upgrade" in found.stdout
    assert "\x1b[2J" not in found.stdout
    document = json.loads(run(stack, "status", "--output", "json").stdout)
    assert [problem["code"] for problem in document["problems"]] == ["paused"]
    assert document["targets"] == []
    assert run(stack, "resume").returncode == 0
    assert json.loads(run(stack, "actions", "--output", "json").stdout) == []
    lines = json.loads(run(stack, "journal", "--output", "json", "--limit", "5").stdout)
    assert lines[-1]["event"] == "resumed"
    assert json.loads(run(stack, "verify", "--output", "json").stdout)["intact"] is True
    nobody = run(stack, "status", url="http://user:secret@127.0.0.1:1")
    assert nobody.returncode == 1
    assert "secret" not in nobody.stderr


def test_an_agent_without_receiver_says_so_at_once(stack):
    """In the log, by readiness and by a metric, before it has ever reached one."""
    stack.start_agent(config={"receiver": "http://user:secret@127.0.0.1:1"})
    wait_for(lambda: "receiver not reached" in stack.log("h0"), 20, "log line")
    status, text = request(f"{stack.agent_url()}/-/ready")
    assert status == 503
    assert "receiver http://***@127.0.0.1:1 not reached" in text
    assert "fabricpulse_remediation_agent_connected 0" in request(f"{stack.agent_url()}/metrics")[1]
    assert "secret" not in stack.log("h0")
    stack.start_receiver()
    stack.wait_receiver()
    stack.start_agent("h1")
    wait_for(lambda: request(f"{stack.agent_url('h1')}/-/ready")[0] == 200, 20, "ready")
    assert "fabricpulse_remediation_agent_connected 1" in request(f"{stack.agent_url('h1')}/metrics")[1]


def test_an_agent_of_a_host_that_left_the_fleet_says_what_to_do(stack):
    """The receiver is there; that it is not reached would send a person to the network."""
    fleet = stack.folder / "fleet.yaml"
    fleet.write_text("hosts: [{name: h7, nics: [{device: rail0, address: 127.0.0.1, network: a}]}]\n")
    stack.start_receiver({"membership": str(fleet)})
    stack.wait_receiver()
    stack.start_agent()
    wait_for(lambda: "receiver refuses this agent, NICs stay as they are" in stack.log("h0"), 20, "log line")
    status, text = request(f"{stack.agent_url()}/-/ready")
    assert status == 503
    assert "HTTP 404 membership does not have this host (add it there by the name" in text
    assert "not reached" not in stack.log("h0")


def test_approve_explain_show_and_replay(stack):
    """A plan waits until it is approved by its hash; the commands show it, and replay tries another configuration."""
    rules = [{"alert": "FabricNicFlapping", "mode": "approve"}]
    stack.start_all({"rules": rules})
    asked = stack.folder / "alert.json"
    asked.write_text(json.dumps(alert()))
    assert "h0/rail0: FabricNicFlapping: a plan is made" in run(stack, "explain", str(asked)).stdout
    assert stack.post(webhook(alert()))[0] == 200
    (waiting,) = wait_for(lambda: stack.get("/api/v1/plans"), 20, "a plan")
    plan = waiting["plan"]["hash"]
    assert plan in run(stack, "plans").stdout
    found = run(stack, "status", "--output", "json")
    assert (found.returncode, json.loads(found.stdout)["problems"][0]["code"]) == (3, "awaiting_approval")
    wrong = run(stack, "approve", "0" * 16)
    assert (wrong.returncode, "no such plan waits" in wrong.stderr) == (1, True)
    assert stack.effects() == []
    assert run(stack, "approve", plan).returncode == 0
    stack.wait_phase("avoided")
    (action,) = stack.actions()
    assert "approved by" in action["reason"]
    shown = run(stack, "show", action["op_id"], "--output", "json")
    assert [line["event"] for line in json.loads(shown.stdout)["lines"]][:2] == ["nic.avoid", "sent"]
    assert "awaiting_approval" in run(stack, "show", "h0/rail0").stdout
    exported = stack.folder / "past.ndjson"
    exported.write_text(run(stack, "export", "--deliveries").stdout)
    config = stack.write("new.yml", {"rules": [{"alert": "FabricNicFlapping", "mode": "auto"}]})
    command = [sys.executable, "-m", "fabricpulse.core.cli", "remediation"]
    replayed = subprocess.run(
        [*command, "replay", "--config", str(config), str(exported), "--output", "json"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    document = json.loads(replayed.stdout)
    assert [line["event"] for line in document["was"]] == ["awaiting_approval", "nic.avoid"]
    assert [line["event"] for line in document["would_be"]] == ["nic.avoid"]
    checked = subprocess.run(
        [*command, "check", str(config)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "FabricNicFlapping: nic.avoid, auto" in checked.stdout
    assert "set signing_key_file" in checked.stdout


@pytest.fixture
def secured(stack: Stack) -> Stack:
    """A receiver with a private authority that asks for client certificates and a token."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(stack.folder / "ca.pem")
    for name in ("127.0.0.1", "h0"):
        certificate = authority.issue_cert(name, key_type=trustme.KeyType.ECDSA)
        certificate.private_key_pem.write_to_path(stack.folder / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(stack.folder / f"{name}.pem")
    (stack.folder / "token").write_text("a-long-token\n")
    web = {
        "tls_server_config": {
            "cert_file": str(stack.folder / "127.0.0.1.pem"),
            "key_file": str(stack.folder / "127.0.0.1.key"),
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(stack.folder / "ca.pem"),
        }
    }
    (stack.folder / "web.yml").write_text(yaml.safe_dump(web))
    stack.start_receiver(
        {"token_file": str(stack.folder / "token"), "agent_certificates": True},
        "--web.config.file",
        str(stack.folder / "web.yml"),
    )
    return stack


def credentials(folder: Path) -> dict[str, object]:
    tls = {
        name: str(folder / f)
        for name, f in (("ca_file", "ca.pem"), ("cert_file", "h0.pem"), ("key_file", "h0.key"))
    }
    return {"tls_config": tls, "token_file": str(folder / "token")}


def test_commands_and_agent_over_mutual_tls(secured):
    """The kill switch works where certificates and a token are asked for, by options and by a file of them."""
    url = secured.url.replace("http://", "https://")
    folder = secured.folder
    secured.start_plugin()
    secured.start_agent(config={"receiver": url, "http_client": credentials(folder)})
    options = [
        "--ca-file", str(folder / "ca.pem"), "--cert-file", str(folder / "h0.pem"),
        "--key-file", str(folder / "h0.key"), "--token-file", str(folder / "token"),
    ]  # fmt: skip
    wait_for(lambda: run(secured, "status", *options, url=url).returncode == 0, 30, "agent over mutual TLS")
    file = folder / "http.yml"
    file.write_text(yaml.safe_dump(credentials(folder)))
    assert run(secured, "pause", "--reason", "x", "--http.config.file", str(file), url=url).returncode == 0
    assert run(secured, "status", *options, url=url).returncode == 3
    lines = json.loads(run(secured, "journal", *options, "--output", "json", url=url).stdout)
    assert lines[-1]["detail"]["owner"].startswith("token (as ")
    refused = run(secured, "status", *options[:-2], url=url)
    assert (refused.returncode, "--token-file" in refused.stderr) == (1, True)
    untrusted = run(secured, "status", url=url)
    assert (untrusted.returncode, "--ca-file" in untrusted.stderr) == (1, True)
    assert "Traceback" not in untrusted.stderr + refused.stderr


def test_a_retired_host_is_forgotten(stack):
    """409 while its agent reports, then everything of it goes; an unknown host is 404."""
    stack.start_all({"guards": {"settle_s": 0, "agent_timeout_s": 2}})
    assert "stop it first" in run(stack, "forget", "h0").stderr
    kill(stack.agents["h0"])
    wait_for(lambda: run(stack, "forget", "h0").returncode == 0, 20, "forgotten")
    assert stack.get("/api/v1/status")["agents"] == []
    assert "nothing is known of h0" in run(stack, "forget", "h0").stderr


def test_passwords_and_tokens_together(stack):
    """It started and refused everybody. A person shows a password, Alertmanager a token; the journal has the person."""
    (stack.folder / "token").write_text("a-long-token\n")
    (stack.folder / "password").write_text("hunter2\n")
    digest = bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()
    (stack.folder / "web.yml").write_text(yaml.safe_dump({"basic_auth_users": {"ada": digest}}))
    access = [
        {"name": "alertmanager", "role": "alert", "token_file": str(stack.folder / "token")},
        {"name": "ada", "role": "operator", "user": "ada"},
    ]
    stack.start_receiver({"access": access}, "--web.config.file", str(stack.folder / "web.yml"))
    basic = {"basic_auth": {"username": "ada", "password_file": str(stack.folder / "password")}}
    (stack.folder / "http.yml").write_text(yaml.safe_dump(basic))
    file = ("--http.config.file", str(stack.folder / "http.yml"))
    wait_for(lambda: run(stack, "status", *file).returncode == 3, 30, "status by password")
    hook = f"{stack.url}/api/v1/alertmanager"
    assert request(hook, webhook(), "a-long-token")[0] == 200
    assert request(hook, webhook(), "wrong")[0] == 401
    assert request(hook, webhook())[0] == 401
    assert request(f"{stack.url}/api/v1/pause", {"reason": "x"}, "a-long-token")[0] == 403
    assert run(stack, "pause", "--reason", "x", *file).returncode == 0
    lines = json.loads(run(stack, "journal", "--output", "json", *file).stdout)
    assert lines[-1]["detail"]["owner"].startswith("ada")
