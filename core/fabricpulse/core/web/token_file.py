"""Secrets in files: bearer token, password. Read again when the file changes, so that they rotate without a restart."""

import hmac
from pathlib import Path

from fabricpulse.core.errors import ConfigError
from fabricpulse.core.files import FileStamp
from fabricpulse.core.log import get_logger
from fabricpulse.core.reread import Reread

log = get_logger(__name__)


class SecretFile:
    """The first line of a file, stripped. A file that cannot be read leaves the old secret in force."""

    def __init__(self, setting: str, path: str) -> None:
        """setting : configuration key, for messages. path : "" for no secret.

        Raises ConfigError when the file cannot be read, is empty, or holds what no HTTP header can carry.
        """
        self._setting = setting
        self._path = Path(path) if path else None
        self._value = ""
        if self._path is not None:
            self._reread = Reread((FileStamp.of(self._path),))
            self._value = self._read(self._path)

    @property
    def value(self) -> str:
        """The secret in force, "" when there is none."""
        if self._path is not None and self._reread.is_due(stamps := (FileStamp.of(self._path),)):
            try:
                self._value = self._read(self._path)
                self._reread.succeeded(stamps)
            except ConfigError as error:
                if self._reread.failed(stamps):
                    log.error(f"{self._setting} cannot be read, the old one stays in force", error=str(error))
        return self._value

    def _read(self, path: Path) -> str:
        try:
            lines = path.read_text(encoding="utf-8").strip().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"cannot read {self._setting} {path}: {reason}") from error
        value = lines[0].strip() if lines else ""
        if not value:
            raise ConfigError(f"{self._setting} {path} is empty; put the secret in its first line")
        if not value.isprintable():
            raise ConfigError(f"{self._setting} {path} has a control character in its first line")
        return value


class TokenFile:
    """The bearer token in a file."""

    def __init__(self, path: str) -> None:
        """path : "" for no token. Raises ConfigError when the file cannot be used."""
        self._secret = SecretFile("token_file", path)

    @property
    def token(self) -> str:
        """The token in force, "" when there is none."""
        return self._secret.value

    @property
    def header(self) -> dict[str, str]:
        """The Authorization header with the token, {} when there is none."""
        token = self.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def accepts(self, authorization: str) -> bool:
        """Whether this Authorization header ("" without one) has the token; True without a token.

        Constant time: takes as long for a wrong token as for the right one.
        """
        token = self.token
        if not token:
            return True
        scheme, _, value = authorization.partition(" ")
        # aiohttp decodes header bytes that are no UTF-8 to surrogates.
        shown = value.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(shown, token.encode())
