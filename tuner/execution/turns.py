"""Whose step is next: every project gets its turn, and within it every job, whatever the others do.

Pure bookkeeping; the caller has a lock and a clock. An owner is (project, job). Next is the project that has used the
least time, and of its jobs the one that has; what runs at the moment counts. A project or job that comes back after a
pause is put level with those that are there, so that it can neither catch up at their cost nor start with a clean slate
after it has used more than they.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
Owner = tuple[str, str]
"""Project and job; an empty job is the project's own."""

LEAST_SECS = 1e-3
"""What a step costs at least, so that those of no measurable length take turns too."""
REMEMBERED = 4096
"""Owners without steps whose use is remembered."""


@dataclass(kw_only=True)
class _Account:
    used_secs: float = 0.0
    queued: int = 0
    began: list[float] = field(default_factory=list)
    """When the steps that run now began, on the caller's clock."""

    def load(self, now: float) -> float:
        return self.used_secs + sum(now - began for began in self.began)

    @property
    def present(self) -> bool:
        return bool(self.queued or self.began)


class Turns(Generic[T]):
    """Queued steps of many owners. A project runs at most `most` at once. Times are in seconds on any one clock."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queues: dict[Owner, deque[T]] = {}
        self._accounts: dict[tuple[str, ...], _Account] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, owner: Owner, step: T, now: float) -> None:
        """Queues a step behind its owner's others."""
        self._queues.setdefault(owner, deque()).append(step)
        for key in (owner[:1], owner):
            account = self._accounts.get(key) or _Account()
            if not account.present:
                others = [other.load(now) for other in self._siblings(key)]
                account.used_secs = max(account.used_secs, min(others, default=0.0))
            account.queued += 1
            self._accounts[key] = account
        if len(self._accounts) > REMEMBERED:
            self._accounts = {key: account for key, account in self._accounts.items() if account.present}

    def take(self, now: float) -> tuple[Owner, T] | None:
        """The step whose turn it is, which begins now; None when none may."""
        free = [owner for owner in self._queues if len(self._accounts[owner[:1]].began) < self._most]
        if not free:
            return None
        owner = min(free, key=lambda one: tuple(self._accounts[key].load(now) for key in (one[:1], one)))
        step = self._queues[owner].popleft()
        if not self._queues[owner]:
            del self._queues[owner]
        for key in (owner[:1], owner):
            self._accounts[key].queued -= 1
            self._accounts[key].began.append(now)
        return owner, step

    def done(self, owner: Owner, began: float, now: float) -> None:
        """A step that was taken at `began` ended."""
        for key in (owner[:1], owner):
            account = self._accounts[key]
            account.began.remove(began)
            account.used_secs += max(now - began, LEAST_SECS)

    def drain(self) -> list[T]:
        """Takes out everything that is queued."""
        steps = [step for queue in self._queues.values() for step in queue]
        self._queues.clear()
        for account in self._accounts.values():
            account.queued = 0
        return steps

    def _siblings(self, key: tuple[str, ...]) -> Iterator[_Account]:
        for other, account in self._accounts.items():
            if len(other) == len(key) and other[:-1] == key[:-1] and other != key and account.present:
                yield account
