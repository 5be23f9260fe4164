"""A TCP proxy that misbehaves: the bytes of a real service, late, cut off, or replaced by an error."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Literal
from urllib.parse import urlsplit

Mood = Literal["well", "late", "truncated", "failing"]
_ERROR = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops"


class Proxy:
    """Forwards connections to the service at a URL; `mood` may change at any time and counts for what comes next.

    late: every answer waits for `delay_secs`. truncated: an answer ends after `whole_bytes` of a connection, which is
    closed. failing: requests are read and answered with 500.
    """

    def __init__(self, url: str, *, mood: Mood = "well", delay_secs: float = 0.3, whole_bytes: int = 200) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._service = (parts.hostname, parts.port)
        self.mood, self.delay_secs, self.whole_bytes = mood, delay_secs, whole_bytes
        self.requests = 0
        """Pieces of requests that came in."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="proxied", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._service) as service:
            back = threading.Thread(target=self._answer, args=(service, client), name="proxied-back", daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                self.requests += 1
                if self.mood == "failing":
                    client.sendall(_ERROR)
                    return
                service.sendall(data)
            service.shutdown(socket.SHUT_WR)
            back.join(60)

    def _answer(self, service: socket.socket, client: socket.socket) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := service.recv(1 << 16):
                if self.mood == "late":
                    time.sleep(self.delay_secs)
                if self.mood == "truncated":
                    client.sendall(data[: max(self.whole_bytes - sent, 0)])
                    sent += len(data)
                    if sent >= self.whole_bytes:
                        client.shutdown(socket.SHUT_RDWR)
                        return
                else:
                    client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
