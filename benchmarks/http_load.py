"""A load generator that costs little: one thread, plain sockets, requests made beforehand.

Reads one JSON object on stdin and writes one on stdout. With a `rate` arrivals are a Poisson process and a latency counts
from the moment its request was due, whether or not a connection was free then (no coordinated omission). Without one every
connection sends as soon as it was answered, and a latency counts from the sending.
"""

from __future__ import annotations

import hashlib
import json
import random
import select
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

MOST_MADE = 3000
"""Different requests; after that they come again, long after the database's own cache has forgotten them."""


def workload(number: int) -> str:
    """Digest of a workload by number; benchmarks/lookup_store.py makes the same ones."""
    return hashlib.sha256(f"workload {number}".encode()).hexdigest()


def bodies(order: dict[str, Any]) -> list[bytes]:
    """Requests for random workloads, drawn uniformly: no key is more in a cache than another."""
    draw = random.Random(order["seed"])
    asked = {name: order[name] for name in ("target", "device_class", "toolchain")}
    made = []
    for _ in range(min(MOST_MADE, order.get("bodies", MOST_MADE))):
        keys = [workload(number) for number in draw.sample(range(order["workloads"]), order["keys"])]
        made.append(json.dumps({**asked, "workloads": keys}).encode())
    return made


def encoded(order: dict[str, Any], body: bytes, tag: str | None) -> bytes:
    known = f"If-None-Match: {tag}\r\n" if tag else ""
    head = (
        f"POST /v1/schedules/lookup HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {order['token']}\r\n"
        f"Content-Type: application/json\r\n{known}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Connection:
    """One request at a time."""

    socket: socket.socket
    due: float = 0.0
    received: int = 0
    expected: int | None = None
    head: bytes = b""
    statuses: Counter[int] = field(default_factory=Counter)

    def send(self, request: bytes, due: float) -> None:
        self.due, self.received, self.expected, self.head = due, 0, None, b""
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Whether the answer is complete."""
        part = self.socket.recv(1 << 20)
        if not part:
            raise SystemExit("the server closed a connection")
        if self.expected is None:
            self.head += part
            head, found, body = self.head.partition(b"\r\n\r\n")
            if not found:
                return False
            self.head, self.received = head, len(body)
            lines = head.lower().split(b"\r\n")
            self.statuses[int(lines[0].split()[1])] += 1
            lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
            self.expected = lengths[0] if lengths else 0
        else:
            self.received += len(part)
        return self.received >= self.expected


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Latencies in seconds, by quantile, of what was due after the warm-up."""
    connections = [Connection(socket.create_connection(("127.0.0.1", order["port"]))) for _ in range(order["clients"])]
    for connection in connections:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made = bodies(order)
    tags = [_tag(connections[0], encoded(order, body, None)) if order.get("known") else None for body in made]
    requests = [encoded(order, body, tag) for body, tag in zip(made, tags, strict=True)]
    for connection in connections:
        connection.statuses.clear()
    draw = random.Random(order["seed"])
    rate, idle, waiting = order.get("rate"), deque(connections), deque[float]()
    busy: dict[int, Connection] = {}
    latencies: list[float] = []
    received_bytes = next_request = 0
    started = time.perf_counter()
    counted_from, ends = started + order["warm_secs"], started + order["warm_secs"] + order["secs"]
    due = started
    cpu = time.process_time()
    while True:
        now = time.perf_counter()
        if rate is None:
            if now < ends:
                waiting.extend([now] * len(idle))
        else:
            while due <= now and due < ends:
                waiting.append(due)
                due += draw.expovariate(rate)
        while waiting and idle:
            connection = idle.popleft()
            connection.send(requests[next_request % len(requests)], waiting.popleft())
            busy[connection.socket.fileno()] = connection
            next_request += 1
        if now >= ends and not busy and not waiting:
            break
        patience = None if rate is None or due >= ends else max(0.0, due - time.perf_counter())
        # select and not epoll: its timeout is not rounded to milliseconds.
        for number in select.select(list(busy), [], [], patience if busy or patience is not None else 0.0)[0]:
            connection = busy[number]
            if connection.receive():
                if connection.due >= counted_from:
                    latencies.append(time.perf_counter() - connection.due)
                    received_bytes += connection.received
                idle.append(busy.pop(number))
    latencies.sort()
    statuses = sum((connection.statuses for connection in connections), Counter[int]())
    return {
        "requests": len(latencies),
        "rate": len(latencies) / (time.perf_counter() - counted_from),
        "answer_bytes": received_bytes / max(1, len(latencies)),
        "statuses": {str(status): count for status, count in statuses.items()},
        "generator_cpu": (time.process_time() - cpu) / (time.perf_counter() - started),
        **{
            name: quantile(latencies, share)
            for name, share in (("p50_secs", 0.5), ("p90_secs", 0.9), ("p99_secs", 0.99))
        },
        "max_secs": latencies[-1],
    }


def quantile(ordered: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def _tag(connection: Connection, request: bytes) -> str:
    connection.send(request, 0.0)
    while not connection.receive():
        pass
    lines = connection.head.decode().split("\r\n")
    return next(line.split(":", 1)[1].strip() for line in lines if line.lower().startswith("etag:"))


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
