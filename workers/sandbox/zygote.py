"""The zygote: a process that has imported TVM once and is forked for every workload.

It is a fork of the fork server (pitchpipe/processes/fork_server.py), so that it has one thread whatever the worker has;
nothing that it imports starts another (tested). It neither runs nor parses foreign code. It ends, with all its descendants,
when the socket to the worker closes or the worker is gone. Its messages are in workers/sandbox/messages.py.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress

from pitchpipe.processes.descendants import become_subreaper, kill_strays
from workers.sandbox.channel import Channel
from workers.sandbox.confinement import die_with_parent
from workers.sandbox.messages import (
    TO_TASK,
    TO_ZYGOTE,
    Fatal,
    Fork,
    Forked,
    Ready,
    ToTask,
    decode,
    encode,
)

TASK_PROCESSES = "pitchpipe.task_processes"
"""Group of entry points: kind of target -> function that prepares the zygote and returns the function that its forks
run."""
_WATCH_SECS = 1.0
_RunForked = Callable[[Channel[ToTask]], None]


def main(descriptor: int, target: str) -> None:
    """Runs the zygote until it is to end. descriptor: the inherited socket. target: as JSON."""
    parent = os.getppid()
    become_subreaper()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The worker decides: it closes the socket.
    sock = socket.socket(fileno=descriptor)
    try:
        try:
            run_forked = _warm_up(target)
        except Exception as error:
            sock.sendall(encode(Fatal(reason=f"{type(error).__name__}: {error}"[:2000])) + b"\n")
            raise
        with suppress(ConnectionError):  # The worker closed it before it read everything: that ends this, too.
            sock.sendall(encode(Ready()) + b"\n")
            _serve(sock, parent, run_forked)
    finally:
        kill_strays(set())


def _warm_up(target: str) -> _RunForked:
    """Imports what children need and compiles once, since the first compilation of a process is three times as slow."""
    from pitchpipe.processes import plugins
    from pitchpipe.wire.target import Target

    parsed = Target.parse(target)
    run: _RunForked = plugins.load(TASK_PROCESSES, parsed.kind)(parsed)
    gc.collect()
    gc.freeze()  # So that the collector in children does not write to shared pages.
    return run


def _serve(sock: socket.socket, parent: int, run_forked: _RunForked) -> None:
    me = os.getpid()
    tasks: set[int] = set()
    while os.getppid() == parent:
        ready, _, _ = select.select([sock], [], [], _WATCH_SECS)
        _reap(tasks)
        if not ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(sock, 4096, 1)
        if not data:
            return
        for text in data.splitlines():
            message = decode(text, TO_ZYGOTE)
            if isinstance(message, Fork):
                task = socket.socket(fileno=descriptors[0])
                pid = os.fork()
                if pid == 0:
                    _become_task_process(me, sock, task, run_forked)
                task.close()
                tasks.add(pid)
                sock.sendall(encode(Forked(pid=pid)) + b"\n")
            elif message.pid in tasks:
                with suppress(ProcessLookupError):
                    os.kill(message.pid, signal.SIGKILL)
                os.waitpid(message.pid, 0)
                tasks.discard(message.pid)
                kill_strays(tasks)


def _reap(tasks: set[int]) -> None:
    """Reaps the task processes that have ended, and kills what they left."""
    for pid in list(tasks):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            tasks.discard(pid)
    kill_strays(tasks)


def _become_task_process(parent: int, sock: socket.socket, task: socket.socket, run_forked: _RunForked) -> None:
    """Runs a task process in the fork. Never returns."""
    try:
        die_with_parent(parent)
        become_subreaper()
        sock.close()
        run_forked(Channel(task, TO_TASK))
    except BaseException:  # noqa: BLE001 - nothing above to tell
        traceback.print_exc()
    finally:
        os._exit(1)
