"""Who may speak to the receiver: the bearer token. Passwords and certificates are the web configuration's."""

from aiohttp import web
from aiohttp.typedefs import Handler

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.remediation.receiver.store import StoreError

log = get_logger(__name__)


class Door:
    """Asks for the token below /api/, and turns our own faults into 503."""

    def __init__(self, token: TokenFile) -> None:
        self._token = token

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets a request through, or answers it."""
        if request.path.startswith("/api/") and not self._token.accepts(
            request.headers.get("Authorization", "")
        ):
            return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"})
        try:
            return await handler(request)
        except StoreError:
            # Ours, not the sender's. The text stays constant, since Alertmanager writes it to its log.
            return web.Response(status=503, text="journal unavailable, try again\n")
        except web.HTTPException:
            raise
        except ConnectionError:
            raise
        except Exception:
            log.exception("request failed", path=request.path)
            return web.Response(status=503, text="internal error, try again\n")
