"""Wake: lets one part of the process tell the others that the database has something new.

Only a hint. Whoever waits also polls, because other processes write to the same database and their notices do not
arrive here. Generations close the gap between looking and waiting: read `generation`, look at the database, then wait
`since` that generation; a notice given in between ends the wait at once.
"""

from __future__ import annotations

import asyncio
import threading


class Wake:
    """Thread-safe; `notify` may be called from any thread, `wait_async` from any event loop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._generation = 0
        self._closed = False
        self._sleepers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def generation(self) -> int:
        with self._changed:
            return self._generation

    @property
    def closed(self) -> bool:
        """The process is going down: whoever waits for news should answer with what it has."""
        return self._closed

    def notify(self) -> None:
        """Ends every present wait."""
        with self._changed:
            self._generation += 1
            self._changed.notify_all()
            sleepers, self._sleepers = self._sleepers, set()
        for loop, event in sleepers:
            # A loop that closed between the wait and this notice has nobody left to wake.
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Ends every present and future wait; once is enough, for good."""
        with self._changed:
            self._closed = True
        self.notify()

    def wait(self, timeout_secs: float, since: int | None = None) -> int:
        """Blocks until a notice newer than `since` (default: now), `close`, or the timeout; returns the generation."""
        with self._changed:
            start = self._generation if since is None else since
            self._changed.wait_for(lambda: self._closed or self._generation != start, timeout_secs)
            return self._generation

    async def wait_async(self, timeout_secs: float, since: int | None = None) -> int:
        """The same without blocking the event loop or taking a thread."""
        sleeper = (asyncio.get_running_loop(), asyncio.Event())
        with self._changed:
            if self._closed or (since is not None and self._generation != since):
                return self._generation
            self._sleepers.add(sleeper)
        try:
            async with asyncio.timeout(timeout_secs):
                await sleeper[1].wait()
        except TimeoutError:
            pass
        finally:
            with self._changed:
                self._sleepers.discard(sleeper)
        return self.generation
