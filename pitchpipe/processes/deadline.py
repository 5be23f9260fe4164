"""A call that is given up after so many seconds in all, whatever it waits for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from pitchpipe.errors import DeadlineExceeded

T = TypeVar("T")


def within(secs: float | None, call: Callable[[], T], what: str) -> T:
    """What `call` gives or raises, or DeadlineExceeded once `secs` have passed; None is no limit.

    The limits of sockets count silences: a name that does not resolve and a peer that sends a byte a second pass them
    all. So the call has a thread of its own, which is left behind when it is late; it is a daemon and holds up no exit.
    """
    if secs is None:
        return call()
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            outcome.put((None, error))

    threading.Thread(target=run, name=f"pitchpipe-{what}", daemon=True).start()
    try:
        value, error = outcome.get(timeout=max(secs, 0.0))
    except queue.Empty:
        raise DeadlineExceeded(f"{what} took longer than {secs:.3g} s") from None
    if error is not None:
        raise error
    return cast(T, value)
