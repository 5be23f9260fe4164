"""Starts children: forks of a process that has imported the compiler (fork_server.py), or, where none can be had, processes
of their own that import it.

Either way a child runs one function of a module in a session of its own, with the descriptors, the environment and the
folder that it is given, and with its group it ends when it is killed here and when this process ends, however it ends. It
can be started from any caller: with threads, or without a main guard. A process starts one fork server, with the first
child, unless it was handed another's (`adopt`).
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from pitchpipe.processes.cores import with_tvm_threads
from pitchpipe.processes.process import FORK, FORK_WITH_TORCH, Executed, Forked, Process, number, readable

START_SECS = 180.0
"""For a fork server to import the compiler and fork; one to two seconds on an idle core."""
FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Elsewhere a fork of a process with native libraries is not safe, and the end of a process cannot be polled."""
_PASSED_ON = ("LANG", "LD_LIBRARY_PATH", "TVM_LIBRARY_PATH")
"""Of the environment, what libraries read while they are imported. Each child gets its own after that."""


def package_roots() -> list[str]:
    """Folders that hold our packages, as far as they are installed."""
    found = {str(Path(__file__).parents[2])}
    if (tuner := find_spec("tuner")) is not None:
        found |= {str(Path(folder).parent) for folder in tuner.submodule_search_locations or []}
    return sorted(found)


class _Gone(Exception):
    """The fork server does not answer."""


class _ForkServer:
    """This side of a fork server, which other processes may use too."""

    def __init__(self, requests: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.requests, self._process = requests, process

    @classmethod
    def start(cls) -> _ForkServer:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start = "from pitchpipe.processes.fork_server import main"
        call = f"main({theirs.fileno()}, {os.getpid()})"
        environment = {
            name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("LC_")
        }
        # A library that starts threads when it is imported could not be forked.
        environment |= {"PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {package_roots()!r}; {start}; {call}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        return cls(ours, process)

    def fork(self, descriptors: Sequence[int], request: bytes) -> Forked:
        """A fork with these descriptors: standard ones, order, and what the order's function gets. request: which fork.

        Raises _Gone when there is none, OSError when the system refuses another process.
        """
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self.requests, [request], [theirs.fileno(), *descriptors])
            pid = number(line) if readable(line, START_SECS) else None
            if pid is None:
                raise _Gone
            if pid < 0:
                raise OSError(-pid, f"the fork server cannot fork: {os.strerror(-pid)}")
            return Forked(pid, line)
        except (_Gone, ConnectionError, BrokenPipeError) as error:
            line.close()
            raise _Gone from error
        except BaseException:
            line.close()
            raise

    def close(self) -> None:
        """Ends it, if this process started it; the kernel ends with it the children that are left."""
        self.requests.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
_server: _ForkServer | None = None
_of_parent: list[_ForkServer | None] = []
"""In a fork: what it does not use, kept so that nothing is done about its end."""
_launched: weakref.WeakSet[Process] = weakref.WeakSet()


def launch(
    function: str,
    *arguments: Any,
    descriptors: Sequence[int] = (),
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] = 1,
    stderr: int | IO[Any] = 2,
    environment: Mapping[str, str] | None = None,
    folder: Path | str | None = None,
    isolated: bool = False,
    launches: bool = False,
    with_torch: bool = False,
) -> Process:
    """A child that runs `function`, a "module:name", on the numbers that the descriptors have there and on the arguments,
    which are JSON.

    environment, folder: this process's by default. isolated: it imports from our packages and the interpreter's own
    folders, not from wherever this process does. launches: its own children come from the same fork server, if it is one.
    with_torch: it needs PyTorch, which the fork server then imports too, once.
    Raises OSError when no process can be started.
    """
    order = {
        "function": function,
        "arguments": list(arguments),
        # What tuner/tvm_compat.py sets where it is imported, and for a fork that was elsewhere.
        "environment": with_tvm_threads(os.environ if environment is None else environment),
        "folder": str(folder or Path.cwd()),
        "path": None if isolated else [str(Path(entry or ".").absolute()) for entry in sys.path],
        "niceness": os.nice(0),
    }
    with ExitStack() as opened:
        standard = [_descriptor(stream, opened) for stream in (stdin, stdout, stderr)]
        for _ in range(2 if FORKS else 0):
            server = _current()
            more = [server.requests.fileno()] if launches else []
            with suppress(_Gone):
                written = opened.enter_context(_written(order | {"parent": None, "launches": launches}))
                process: Process = server.fork(
                    [*standard, written.fileno(), *descriptors, *more], FORK_WITH_TORCH if with_torch else FORK
                )
                break
            _drop(server)
        else:
            written = opened.enter_context(_written(order | {"parent": os.getpid(), "launches": False}))
            process = _execute(order, standard, [written.fileno(), *descriptors])
    _launched.add(process)
    return process


def _execute(order: Mapping[str, Any], standard: Sequence[int], descriptors: Sequence[int]) -> Executed:
    start = "from pitchpipe.processes.fork_server import fulfil"
    stdin, stdout, stderr = standard
    return Executed(
        subprocess.Popen(
            [
                *(sys.executable, "-I" if order["path"] is None else "-P", "-c"),
                f"import sys; sys.path[:0] = {package_roots()!r}; {start}; fulfil({list(descriptors)})",
            ],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=descriptors,
            env=order["environment"],
            cwd=order["folder"],
            start_new_session=True,
        )
    )


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A child that has ended, and what it printed."""

    returncode: int
    """As Process has it."""
    stdout: bytes
    stderr: bytes


def run(function: str, *arguments: Any, timeout_secs: float, environment: Mapping[str, str] | None = None) -> Completed:
    """`launch`, and what became of it; raises TimeoutError when that is not known within `timeout_secs`."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = launch(function, *arguments, stdout=stdout, stderr=stderr, environment=environment)
        try:
            in_time = child.wait(timeout_secs)
        finally:
            child.close()
        if not in_time or child.returncode is None:
            raise TimeoutError(f"{function} took longer than {timeout_secs:g} s")
        for file in (stdout, stderr):
            file.seek(0)
        return Completed(returncode=child.returncode, stdout=stdout.read(), stderr=stderr.read())


def start_server() -> None:
    """Starts the fork server before its first child is wanted: it imports the compiler meanwhile."""
    if FORKS:
        _current()


def share() -> list[int]:
    """The descriptor that a process which this one starts hands to `adopt`; none where there are no fork servers.

    The server begins to import at once.
    """
    return [_current().requests.fileno()] if FORKS else []


def adopt(descriptor: int) -> None:
    """From now on this process's children come from the fork server behind an inherited descriptor, while it answers."""
    global _server
    os.set_inheritable(descriptor, False)
    with _lock:
        _server = _ForkServer(socket.socket(fileno=descriptor))


def running() -> list[Process]:
    """What this process has launched and still runs."""
    return [process for process in list(_launched) if not process.wait(0)]


def _current() -> _ForkServer:
    global _server
    with _lock:
        if _server is None:
            _server = _ForkServer.start()
        return _server


def _drop(server: _ForkServer) -> None:
    """Forgets a server that is gone, unless another thread did."""
    global _server
    with _lock:
        if _server is server:
            _server = None
            server.close()


def _written(order: Mapping[str, Any]) -> IO[bytes]:
    """The order in a file without a name."""
    file = open(os.memfd_create("order"), "w+b") if FORKS else tempfile.TemporaryFile()  # noqa: SIM115 - for the caller
    file.write(json.dumps(order).encode())
    file.flush()
    return file


def _descriptor(stream: int | IO[Any], opened: ExitStack) -> int:
    if stream == subprocess.DEVNULL:
        return opened.enter_context(open(os.devnull, "r+b", buffering=0)).fileno()
    return stream if isinstance(stream, int) else stream.fileno()


def _forget() -> None:
    global _lock, _server
    _of_parent.append(_server)
    _lock, _server = threading.Lock(), None


@atexit.register
def _close() -> None:
    for process in running():
        process.kill()
    if _server is not None:
        _server.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
