"""Signed messages from the receiver to node agents: Ed25519 (RFC 8032) over the bytes as they are sent.

The payload travels as a string inside the envelope, so that sender and verifier hash the same bytes and no canonical
JSON is needed. Both key files are read again when they change: keys rotate without a restart.
"""

import base64
import binascii
import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.files import FileStamp
from fabricpulse.core.log import get_logger
from fabricpulse.core.reread import Reread
from fabricpulse.remediation.protocol import Envelope

log = get_logger(__name__)

# A signature counts for this purpose only, whatever else the key is used for.
_CONTEXT = b"fabricpulse desired state 1\n"
_BEGIN, _END = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"
_MAX_KEYS = 16


class SignatureError(Exception):
    """A message is not signed by a key of this host; the text says by which."""


def key_id(key: Ed25519PublicKey) -> str:
    """A name for a public key: the first 16 hexadecimal digits of its SHA-256."""
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


class Signer:
    """The private key in a file. What cannot be read leaves the old key in force."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError when the file holds no Ed25519 private key in PEM form."""
        self._path = Path(path)
        self._reread = Reread((FileStamp.of(self._path),))
        self._key = private_key(self._path)
        self.key_id = key_id(self._key.public_key())

    def sign(self, payload: bytes) -> Envelope:
        """The payload in a signed envelope. payload : UTF-8."""
        if self._reread.is_due(stamps := (FileStamp.of(self._path),)):
            try:
                self._key = private_key(self._path)
                self._reread.succeeded(stamps)
                self.key_id = key_id(self._key.public_key())
                log.info("signing key changed", key_id=self.key_id)
            except ConfigError as error:
                if self._reread.failed(stamps):
                    log.error("signing key cannot be read, the old one stays in force", error=str(error))
        signature = base64.b64encode(self._key.sign(_CONTEXT + payload)).decode()
        return Envelope(payload.decode(), self.key_id, signature)


class Verifier:
    """The public keys in a file; more than one while keys rotate. What cannot be read leaves the old ones in force."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError when the file does not hold Ed25519 public keys in PEM form, one after the other."""
        self._path = Path(path)
        self._reread = Reread((FileStamp.of(self._path),))
        self._keys = public_keys(self._path)

    def open(self, envelope: Envelope) -> bytes:
        """The payload of an envelope. Raises SignatureError unless a key of the file has signed it."""
        if self._reread.is_due(stamps := (FileStamp.of(self._path),)):
            try:
                self._keys = public_keys(self._path)
                self._reread.succeeded(stamps)
                log.info("receiver keys changed", key_ids=sorted(self._keys))
            except ConfigError as error:
                if self._reread.failed(stamps):
                    log.error("receiver keys cannot be read, the old ones stay in force", error=str(error))
        if not envelope.signature:
            raise SignatureError(
                "the receiver does not sign; give it signing_key_file, or take receiver_keys away"
            )
        key = self._keys.get(envelope.key_id)
        if key is None:
            raise SignatureError(
                f"signed with the key {envelope.key_id}, which is not in receiver_keys {self._path}"
            )
        payload = envelope.payload.encode()
        try:
            key.verify(base64.b64decode(envelope.signature, validate=True), _CONTEXT + payload)
        except (InvalidSignature, binascii.Error, ValueError) as error:
            raise SignatureError(f"the signature of the key {envelope.key_id} does not fit") from error
        return payload


def make_key_pair(private: Path, public: Path) -> str:
    """Writes a new private key, readable by its owner alone, and appends its public key; returns the key's id.

    Raises UserError when the private file is there already (a key that signs must not vanish by accident), or when a
    file cannot be written, and then no private key is left behind.
    """
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise UserError(f"{private} exists already; choose another name, or move it away") from error
    except OSError as error:
        raise UserError(f"cannot write {private}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        with public.open("ab") as file:
            file.write(shown)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        private.unlink(missing_ok=True)
        raise UserError(f"cannot write {error.filename or public}: {error.strerror}") from error
    return key_id(key.public_key())


def public_keys(path: Path) -> dict[str, Ed25519PublicKey]:
    """The public keys of a file by their ids. Raises ConfigError."""
    found: dict[str, Ed25519PublicKey] = {}
    for block in _blocks(_read(path, "receiver_keys"), path):
        try:
            key = load_pem_public_key(block)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"receiver_keys {path} has a block that is no public key: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigError(
                f"receiver_keys {path} has a key that is not Ed25519; make one with `remediation keygen`"
            )
        found[key_id(key)] = key
    return found


def _blocks(text: str, path: Path) -> list[bytes]:
    blocks: list[bytes] = []
    rest = text
    while _BEGIN in rest:
        block, end, rest = rest.partition(_END)
        if not end or len(blocks) == _MAX_KEYS:
            raise ConfigError(f"receiver_keys {path} is cut off or has more than {_MAX_KEYS} keys")
        blocks.append((block[block.index(_BEGIN) :] + end + "\n").encode())
    if not blocks or rest.strip():
        raise ConfigError(
            f"receiver_keys {path} holds no public key, or something beside them (PEM is expected)"
        )
    return blocks


def private_key(path: Path) -> Ed25519PrivateKey:
    """The private key of a file. Raises ConfigError."""
    try:
        key = load_pem_private_key(_read(path, "signing_key_file").encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"signing_key_file {path} is no private key in PEM form without a password"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"signing_key_file {path} is not Ed25519; make one with `remediation keygen`")
    return key


def _read(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"cannot read {setting} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting} {path} is not PEM") from error
