"""One JSON document for a command: what a person reads when it does not come."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_config import BasicAuth, HttpClientConfig
from fabricpulse.core.web.document import fetch_document

Serve = Callable[[bytes | None], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that sends these bytes to each client and closes; None: that is silent. Returns its URL."""
    ended = threading.Event()
    threads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(raw: bytes | None) -> None:
            with suppress(OSError):
                while True:  # a client that gets nothing tries once more
                    with listener.accept()[0] as client:
                        client.recv(65536)
                        if raw is None:
                            ended.wait()
                        else:
                            client.sendall(raw)

        def start(raw: bytes | None) -> str:
            threads.append(threading.Thread(target=answer, args=(raw,)))
            threads[-1].start()
            return f"http://u:secret@127.0.0.1:{listener.getsockname()[1]}"

        yield start
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        for thread in threads:
            thread.join()


def http(status: str, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def test_a_document_is_decoded(serve: Serve) -> None:
    """Whatever JSON it is."""
    url = serve(http("200 OK", b'{"hosts": [1]}'))
    assert fetch_document(url, "/a", HttpClientConfig(), daemon="coordinator") == {"hosts": [1]}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (http("500 Oops"), "answers with status 500 instead of what a coordinator has at /a"),
        (
            http("401 No"),
            "asks for a password or token (401): give --token-file, or basic_auth in --http.config.file",
        ),
        (http("200 OK", b"<html>"), "is not from a coordinator: it is not JSON"),
        (http("200 OK", b"[" * 100_000), "is not from a coordinator: it is not JSON"),
        (b"", "closed the connection without a proper answer: does it speak https?"),
        (
            b"\x15\x03\x03\x00\x02\x02\x46",
            "closed the connection without a proper answer: does it speak https?",
        ),
        (None, "no answer within 0.05 s; is the daemon running, and --fleet right?"),
    ],
)
def test_what_is_wrong_is_one_sentence_without_credentials(
    serve: Serve, raw: bytes | None, words: str
) -> None:
    """A status, a missing password, no JSON, JSON too deep to read, TLS where HTTP was asked for, silence."""
    url = serve(raw)
    config = HttpClientConfig(timeout_s=0.05 if raw is None else 60)
    with pytest.raises(UserError) as raised:
        fetch_document(url, "/a", config, daemon="coordinator", option="--fleet")
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)


def test_messages_distinguish_a_refused_from_a_missing_password(serve: Serve, tmp_path: Path) -> None:
    """Both are status 401."""
    (tmp_path / "word").write_text("0815")
    basic = BasicAuth(username="u", password_file=str(tmp_path / "word"))
    url = serve(http("401 No")).replace("u:secret@", "")
    with pytest.raises(UserError, match="does not accept the password or token that was shown"):
        fetch_document(url, "/a", HttpClientConfig(basic_auth=basic), daemon="coordinator")
