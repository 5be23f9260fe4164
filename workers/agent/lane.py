"""A thread with an inbox ordered by due time, in which the worker's shell makes blocking calls."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from workers.agent import events


class Lane(threading.Thread):
    """A thread that carries out instructions one after the other, each once its time has come."""

    def __init__(
        self,
        name: str,
        carry_out: Callable[[events.Instruction], None],
        died: Callable[[str, BaseException], None],
    ) -> None:
        super().__init__(name=f"worker-{name}", daemon=True)
        self._lane, self._carry_out, self._died = name, carry_out, died
        self._due: list[tuple[float, int, events.Instruction]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, instruction: events.Instruction, after_secs: float = 0.0) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + after_secs, next(self._number), instruction))
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread after what it is doing; what is still due is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        try:
            while (instruction := self._next()) is not None:
                self._carry_out(instruction)
        except BaseException as error:  # noqa: BLE001 - a dead lane must never go unnoticed
            self._died(self._lane, error)

    def _next(self) -> events.Instruction | None:
        with self._changed:
            while not self._closed:
                wait_secs = self._due[0][0] - time.monotonic() if self._due else None
                if wait_secs is not None and wait_secs <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_secs)
            return None
