"""What an agent obeys: signed by a key of its host, for this host, and still valid."""

import stat

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.journal import NodeJournal
from fabricpulse.remediation.node.receiver_client import MAX_VALID_S, ReceiverClient, ReceiverError
from fabricpulse.remediation.protocol import DesiredNic, DesiredState, Envelope
from fabricpulse.remediation.signing import SignatureError, Signer, Verifier, make_key_pair, public_keys

NOW = 1_700_000_000.0
PAYLOAD = '{"host":"h0","text":"ä"}'.encode()


@pytest.fixture
def keys(tmp_path):
    """The paths of a key pair."""
    make_key_pair(tmp_path / "private.pem", tmp_path / "public.pem")
    return tmp_path / "private.pem", tmp_path / "public.pem"


def test_what_was_signed_is_opened(keys):
    """The very bytes come back; the key is named."""
    private, public = keys
    envelope = Signer(str(private)).sign(PAYLOAD)
    assert Verifier(str(public)).open(envelope) == PAYLOAD
    assert [envelope.key_id] == list(public_keys(public))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"payload": '{"host":"h1","text":"ä"}'}, "does not fit"),
        ({"payload": ""}, "does not fit"),
        ({"signature": ""}, "does not sign"),
        ({"signature": "AAAA"}, "does not fit"),
        ({"signature": "no base64!"}, "does not fit"),
        ({"key_id": "0" * 16}, "not in receiver_keys"),
        ({"key_id": ""}, "not in receiver_keys"),
    ],
)
def test_anything_else_is_refused(keys, change, message):
    """One changed byte, no signature, somebody else's key: a sentence that says which."""
    private, public = keys
    envelope = msgspec.structs.replace(Signer(str(private)).sign(PAYLOAD), **change)
    with pytest.raises(SignatureError, match=message):
        Verifier(str(public)).open(envelope)


def test_a_signature_for_something_else_does_not_count(keys, tmp_path):
    """The same key, used to sign these bytes elsewhere, gives no order to an agent."""
    from base64 import b64encode

    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private, public = keys
    key = load_pem_private_key(private.read_bytes(), None)
    signature = b64encode(key.sign(PAYLOAD)).decode()
    name = next(iter(public_keys(public)))
    with pytest.raises(SignatureError):
        Verifier(str(public)).open(Envelope(PAYLOAD.decode(), name, signature))


def test_keys_rotate_without_a_restart(keys, tmp_path):
    """Both keys count while the hosts have both; then the old one does not."""
    private, public = keys
    signer, verifier = Signer(str(private)), Verifier(str(public))
    old = signer.sign(PAYLOAD)
    first = public.read_bytes()
    make_key_pair(tmp_path / "new.pem", public)
    assert verifier.open(old) == PAYLOAD
    (tmp_path / "new.pem").replace(private)
    new = signer.sign(PAYLOAD)
    assert new.key_id != old.key_id
    assert verifier.open(new) == PAYLOAD
    public.write_bytes(public.read_bytes().removeprefix(first))
    assert verifier.open(new) == PAYLOAD
    with pytest.raises(SignatureError):
        verifier.open(old)


def test_half_a_rotation_leaves_the_old_keys_in_force(keys):
    """A file that is cut off or gone changes nothing."""
    private, public = keys
    signer, verifier = Signer(str(private)), Verifier(str(public))
    public.write_text(public.read_text()[:40])
    private.write_text("")
    assert verifier.open(signer.sign(PAYLOAD)) == PAYLOAD
    public.unlink()
    private.unlink()
    assert verifier.open(signer.sign(PAYLOAD)) == PAYLOAD


def test_files_that_hold_something_else(keys, tmp_path):
    """A sentence that names setting and file: no key, another kind of key, the wrong half, none at all."""
    private, public = keys
    other = generate_private_key(SECP256R1())
    ec_private, ec_public = tmp_path / "ec", tmp_path / "ec.pub"
    ec_private.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    ec_public.write_bytes(other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    empty = tmp_path / "empty"
    empty.write_text("")
    for path in (ec_private, empty, public, tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=rf"signing_key_file {path}"):
            Signer(str(path))
    both = tmp_path / "both"
    both.write_bytes(public.read_bytes() + private.read_bytes())
    for path in (ec_public, empty, private, both, tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=rf"receiver_keys {path}"):
            Verifier(str(path))


def test_keygen(keys, tmp_path):
    """The private key is its owner's alone, and never overwritten; a failure leaves no private key behind."""
    private, public = keys
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    before = private.read_bytes()
    with pytest.raises(UserError, match="exists already"):
        make_key_pair(private, public)
    assert private.read_bytes() == before
    with pytest.raises(UserError, match="cannot write"):
        make_key_pair(tmp_path / "p2", tmp_path / "no" / "public.pem")
    assert not (tmp_path / "p2").exists()


def desired(**changes):
    made = DesiredState("h0", 1, "1;", [], NOW + 60)
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"host": "h1"}, "another host's"),
        ({"not_after": NOW - 7}, "expired 7 s ago"),
        ({"not_after": 0.0}, "a clock is wrong"),
        ({"not_after": NOW + MAX_VALID_S + 60}, "valid for too long"),
    ],
)
async def test_an_answer_that_was_recorded_is_refused(changes, message):
    """For another host, too old, or valid for ever: with or without a signature."""
    client = ReceiverClient(NodeConfig(host="h0"), lambda: NOW)
    try:
        body = msgspec.json.encode(Envelope(msgspec.json.encode(desired(**changes)).decode()))
        if not message:
            assert client._decode(body).host == "h0"
            return
        with pytest.raises(ReceiverError, match=message):
            client._decode(body)
    finally:
        await client.close()


async def test_with_keys_an_unsigned_answer_is_refused(keys):
    """And a signed one is taken."""
    private, public = keys
    client = ReceiverClient(NodeConfig(host="h0", receiver_keys=str(public)), lambda: NOW)
    try:
        payload = msgspec.json.encode(desired())
        with pytest.raises(ReceiverError, match="does not sign"):
            client._decode(msgspec.json.encode(Envelope(payload.decode())))
        assert client._decode(msgspec.json.encode(Signer(str(private)).sign(payload))).version == "1;"
    finally:
        await client.close()


def test_the_journal_keeps_until_when_an_operation_may_be_carried_out(tmp_path):
    """Across a restart; forgotten once it was carried out, or another one has taken its place. A decision may end
    before the state that it came with."""
    journal = NodeJournal(tmp_path / "n.db")
    ending = DesiredNic("rail2", "avoid", 1, "d", not_after=40.0)
    two = [DesiredNic("rail0", "avoid", 1, "a"), DesiredNic("rail1", "avoid", 1, "b")]
    journal.accept(1, [*two, ending], 50.0)
    journal.carried_out("a")
    journal.close()
    journal = NodeJournal(tmp_path / "n.db")
    assert journal.waiting() == {"b": 50.0, "d": 40.0}
    journal.carried_out("d")
    journal.accept(2, [DesiredNic("rail1", "in_service", 2, "c")], 90.0)
    assert journal.waiting() == {"c": 90.0}
    journal.close()
