"""Messages over a Unix stream socket, as JSON, each after its length in four bytes. No pickle: a peer may be hostile."""

from __future__ import annotations

import select
import socket
import struct
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from pitchpipe.wire._base import Wire
from workers.sandbox.messages import decode, encode

_Incoming = TypeVar("_Incoming")

MAX_BYTES = 256 << 20
"""Largest message; the IR of a workload with constants needs most."""


class Closed(Exception):
    """The peer is gone or sent an invalid message."""


class Channel(Generic[_Incoming]):
    """One end of a channel, with the types of messages that it expects. Not thread-safe."""

    def __init__(self, sock: socket.socket, expected: TypeAdapter[_Incoming]) -> None:
        sock.setblocking(True)
        self._sock, self._expected = sock, expected
        self._received = bytearray()

    def fileno(self) -> int:
        """The descriptor, for selectors. It may be readable without a complete message, and a message may be buffered
        without it being readable: so always call `receive`."""
        return self._sock.fileno()

    def send(self, message: Wire) -> None:
        """Blocks until the message is handed to the kernel; raises Closed."""
        data = encode(message)
        try:
            self._sock.sendall(struct.pack("!I", len(data)) + data)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, timeout_secs: float | None = 0.0) -> _Incoming | None:
        """The next message; None when none is complete within `timeout_secs` (None: no limit). Raises Closed."""
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

    def _complete(self) -> _Incoming | None:
        if len(self._received) < 4:
            return None
        (size,) = struct.unpack("!I", self._received[:4])
        if size > MAX_BYTES:
            raise Closed(f"a message of {size} bytes")
        if len(self._received) < 4 + size:
            return None
        data = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        try:
            return decode(data, self._expected)
        except ValueError as error:
            raise Closed(f"a message that makes no sense: {error}") from error

    def close(self) -> None:
        self._sock.close()
