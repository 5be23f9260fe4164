"""JSON messages over a Unix stream socket, each after its length in four bytes. No pickle: a peer may be hostile."""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any

MAX_BYTES = 256 << 20
"""Of one message; a workload's IR with constants is the largest."""


class Closed(Exception):
    """The peer is gone."""


class Channel:
    """One end. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._received = bytearray()

    def fileno(self) -> int:
        """For selectors. Readable does not mean that a message is complete, and one may be buffered: use `receive`."""
        return self._sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Blocks until the message is handed to the kernel; raises Closed."""
        data = json.dumps(message).encode()
        try:
            self._sock.sendall(struct.pack("!I", len(data)) + data)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, timeout_secs: float | None = 0.0) -> dict[str, Any] | None:
        """The next message; None when none is complete within the time (None waits for ever). Raises Closed."""
        while (message := self._complete()) is None:
            ready, _, _ = select.select([self._sock], [], [], timeout_secs)
            if not ready:
                return None
            try:
                data = self._sock.recv(1 << 20)
            except OSError as error:
                raise Closed(str(error)) from error
            if not data:
                raise Closed("the other end was closed")
            self._received += data
        return message

    def _complete(self) -> dict[str, Any] | None:
        if len(self._received) < 4:
            return None
        (size,) = struct.unpack("!I", self._received[:4])
        if size > MAX_BYTES:
            raise Closed(f"a message of {size} bytes")
        if len(self._received) < 4 + size:
            return None
        data = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        message = json.loads(data)
        if not isinstance(message, dict):
            raise Closed("a message that is no object")
        return message

    def close(self) -> None:
        self._sock.close()
