"""Compiled code in a process that was forked, where the threads that it computes with are lost.

TVM has a pool of threads for each thread that calls it. A fork has one thread, the one that forked, and that one's pool
waits for threads that are not there: its next parallel loop would never end. So there it has another thread call, which gets
a pool of its own. Threads that the fork starts itself call as ever.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_bereft: set[int] = set()
"""The thread that this process was forked by, in a fork of a process that had started pools."""
_others: list[ThreadPoolExecutor] = []
"""One thread, which calls in its place; none until it is needed."""
_guarding = False


def guard_forks() -> None:
    """From now on forks of this process know that their pools are lost. Whoever starts one calls this, before."""
    global _guarding
    if not _guarding:
        os.register_at_fork(after_in_child=_forked)
        _guarding = True


def with_threads(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called where there is a pool of threads: in a fork, by another thread if need be."""

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        if _bereft and threading.get_ident() in _bereft:
            if not _others:
                _others.append(ThreadPoolExecutor(1, thread_name_prefix="pitchpipe"))
            return _others[0].submit(function, *arguments).result()
        return function(*arguments)

    return called


def _forked() -> None:
    _bereft.clear()
    _bereft.add(threading.get_ident())
    _others.clear()
