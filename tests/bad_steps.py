"""Steps that misbehave, for tests of the engine; imported by its children, so light."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

from pitchpipe.errors import InvalidModel

MIB = 1 << 20


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def hang() -> None:
    while True:
        time.sleep(60)


def burn() -> None:
    while True:
        pass


def eat() -> int:
    eaten = [bytearray(64 * MIB) for _ in range(1000)]
    return len(eaten)


def leave() -> None:
    os._exit(3)


def fail() -> None:
    raise ValueError("the reason")


def connect() -> None:
    with socket.socket() as made:
        made.connect(("127.0.0.1", 9))


def start_program() -> None:
    subprocess.run(["true"], check=True)


def write(path: str) -> None:
    Path(path).write_text("here")


def wait_for(path: str) -> None:
    """Ends once the file is there."""
    while not os.path.exists(path):
        time.sleep(0.005)


def leave_a_descendant(path: str) -> None:
    """Ends while a child of its own still runs, which holds whatever it held."""
    if (child := os.fork()) == 0:
        while True:
            time.sleep(60)
    Path(path).write_text(str(child))
    os._exit(0)


class Foreign:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("true",))


def answer_with_code() -> object:
    return Foreign()


def nap(secs: float) -> float:
    time.sleep(secs)
    return secs


def refuse() -> None:
    raise InvalidModel("the cause")


def stay(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)
