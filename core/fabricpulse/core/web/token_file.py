"""A bearer token in a file."""

import hmac
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger

log = get_logger(__name__)


class TokenFile:
    """The token in a file, read again when the file changes, so that it rotates without a restart."""

    def __init__(self, path: str) -> None:
        """path : "" for no token. Raises UserError when the file cannot be read or is empty."""
        self._path = Path(path) if path else None
        self._stamp: tuple[int, ...] = ()
        self._token = ""
        if self._path is not None:
            self._stamp = self._stat(self._path)
            self._token = _read(self._path)

    @property
    def token(self) -> str:
        """The token in force, "" when none is asked for."""
        if self._path is not None and (stamp := self._stat(self._path)) != self._stamp:
            self._stamp = stamp
            try:
                self._token = _read(self._path)
            except UserError as error:
                log.error("token cannot be read, the old one stays in force", error=str(error))
        return self._token

    @property
    def header(self) -> dict[str, str]:
        """The header that shows the token, {} when there is none."""
        token = self.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def accepts(self, authorization: str) -> bool:
        """Whether a request with this Authorization header ("" without one) shows the token; True without a token."""
        token = self.token
        scheme, _, value = authorization.partition(" ")
        shown = scheme.lower() == "bearer" and hmac.compare_digest(value.strip().encode(), token.encode())
        return shown or not token

    @staticmethod
    def _stat(path: Path) -> tuple[int, ...]:
        try:
            status = path.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"cannot read token_file {path}: {reason}") from error
    if not token:
        raise UserError(f"token_file {path} is empty; put the bearer token in it")
    return token
