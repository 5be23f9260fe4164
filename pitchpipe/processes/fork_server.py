"""The fork server: a process that has imported the compiler once and is forked for every child that needs it.

It is started by exec, has one thread and next to nothing of its starter's environment, and opens nothing that a stranger
sent: it does not even read what it is asked for. A request is a byte, which says whether PyTorch is needed, with
descriptors; one of them holds the order, which the fork reads (`fulfil`). So what is in one child's order, tokens in its
environment included, is in no other child.

A child leads a session of its own and dies with this process; it is killed, with its group, when whoever asked for it says
so, closes the line, or is gone, and whatever a child leaves behind is killed with it. This process ends with the one that
started it, when nobody can ask any more, and after IDLE_SECS without a child. The other side is in launch.py.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import NoReturn

from pitchpipe.processes.child import WITH_TORCH
from pitchpipe.processes.collector import collect_rarely
from pitchpipe.processes.descendants import become_subreaper, kill_strays
from pitchpipe.processes.launch import adopt
from pitchpipe.processes.lifeline import end_with_parent
from pitchpipe.processes.plugins import MissingExtra, load, names
from pitchpipe.processes.process import FORK_WITH_TORCH, NUMBER

PRELOADED = "pitchpipe.preloaded"
"""Group of entry points: what is imported before the first fork, as far as it is installed."""
IDLE_SECS = 60.0
MOST_DESCRIPTORS = 16
_STANDARD = 3
_PEER = struct.Struct("=3i")


@dataclass(kw_only=True, eq=False)
class _Child:
    pid: int
    ended: int
    """A descriptor that is readable once the child has ended."""
    line: socket.socket
    """To the requester; what comes from it, its end included, kills the child."""
    requester: int
    """A descriptor that is readable once the requester has ended, which a descendant that holds the line cannot hide."""


def main(descriptor: int, parent: int) -> None:
    """The server, and what becomes of each fork. descriptor: where requests arrive. parent: process id."""
    become_subreaper()
    requests = socket.socket(fileno=descriptor)
    _preload(PRELOADED)
    order = _Server(requests, parent).serve()
    if order is None:
        kill_strays(set())
        return
    fulfil(order)


def _preload(group: str) -> None:
    gc.disable()  # It would look through all that the imports make, again and again, and nearly all of it stays.
    for name in names(group):
        with suppress(MissingExtra):
            load(group, name)
    gc.freeze()  # So that the collector in children does not write to shared pages.
    gc.enable()


class _Server:
    def __init__(self, requests: socket.socket, parent: int) -> None:
        self._requests, self._parent, self._me = requests, os.pidfd_open(parent), os.getpid()
        self._orphaned = os.getppid() != parent
        self._children: list[_Child] = []
        self._has_torch = False

    def serve(self) -> list[int] | None:
        """In a fork: the descriptors of its order. In the server: None, once it is to end."""
        idle_since = time.monotonic()
        while not self._orphaned:
            for what in self._ready(idle_since + IDLE_SECS - time.monotonic()):
                if what is self:
                    return None
                if isinstance(what, _Child):
                    self._look_after(what)
                    continue
                asked, descriptors, _, _ = socket.recv_fds(self._requests, 1, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
                if not descriptors:
                    return None  # Nobody is left who could ask.
                if asked == FORK_WITH_TORCH and not self._has_torch:
                    _preload(WITH_TORCH)
                    self._has_torch = True
                if (order := self._fork(descriptors)) is not None:
                    return order
            if self._children:
                idle_since = time.monotonic()
            elif time.monotonic() >= idle_since + IDLE_SECS:
                return None
        return None

    def _ready(self, secs: float) -> list[_Server | _Child | socket.socket]:
        """What there is to do: self for the end of the parent, a child, the requests."""
        poll = select.poll()
        meaning: dict[int, _Server | _Child | socket.socket] = {
            self._parent: self,
            self._requests.fileno(): self._requests,
        }
        for child in self._children:
            meaning |= dict.fromkeys((child.ended, child.line.fileno(), child.requester), child)
        for descriptor in meaning:
            poll.register(descriptor, select.POLLIN)
        found = poll.poll(None if self._children else 1000 * max(secs, 0.0))
        return list(dict.fromkeys(meaning[descriptor] for descriptor, _ in found))

    def _fork(self, descriptors: list[int]) -> list[int] | None:
        """In the fork: the descriptors of its order, where everything else is closed."""
        line, *order = descriptors
        control = socket.socket(fileno=line)
        try:
            requester = os.pidfd_open(
                _PEER.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
            )
        except OSError:  # It is gone.
            control.close()
            _close(order)
            return None
        try:
            pid = os.fork()
        except OSError as error:
            control.send(NUMBER.pack(-(error.errno or 1)))
            control.close()
            _close([requester, *order])
            return None
        if pid == 0:
            self._become_child(order)
            return order[_STANDARD:]
        _close(order)
        self._children.append(_Child(pid=pid, ended=os.pidfd_open(pid), line=control, requester=requester))
        with suppress(OSError):
            control.send(NUMBER.pack(pid))
        return None

    def _become_child(self, order: Sequence[int]) -> None:
        os.setsid()
        end_with_parent(self._me)
        for number in range(_STANDARD):
            os.dup2(order[number], number)
        kept = set(order[_STANDARD:])
        for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
            if descriptor >= _STANDARD and descriptor not in kept:
                with suppress(OSError):
                    os.close(descriptor)

    def _look_after(self, child: _Child) -> None:
        """Buries the child if it has ended, else kills it: nothing else makes it ready."""
        for kill in (os.killpg, os.kill):  # The child itself too, which may not lead its group yet.
            with suppress(ProcessLookupError):
                kill(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        self._children.remove(child)
        kill_strays({other.pid for other in self._children})
        with suppress(OSError):
            child.line.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        child.line.close()
        _close([child.ended, child.requester])


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def fulfil(descriptors: Sequence[int]) -> NoReturn:
    """Becomes what the order in the first descriptor says, runs its function with the others and its arguments, and ends.

    Where the function returns, the process ends at once: the compiler's destructors have nothing more to do, and would copy
    every page of a fork.
    """
    with os.fdopen(descriptors[0], "rb") as file:
        file.seek(0)
        order = json.load(file)
    if order["parent"] is not None:
        end_with_parent(order["parent"])
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    if order["path"] is not None:
        sys.path[:] = order["path"]
        importlib.invalidate_caches()
    sys.dont_write_bytecode = bool(order["environment"].get("PYTHONDONTWRITEBYTECODE"))
    collect_rarely()
    tempfile.tempdir = None  # It was found in another environment.
    os.nice(max(0, order["niceness"] - os.nice(0)))
    _, *own = descriptors
    if order["launches"]:
        adopt(own.pop())
    resolve_name(order["function"])(*own, *order["arguments"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
