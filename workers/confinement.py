"""What keeps a candidate's process in its cage: it dies with its parent, it has limits, and it may not start processes.

Linux only; called in the forked child before anything foreign runs there. The system-call filter (seccomp) kills a
child that forks or executes, and answers "not permitted" to writes of files, to sockets and to signals for others;
threads and memory stay free. Where the kernel offers no filter, limits and `kill_strays` remain.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_CLONE_THREAD = 0x10000
_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Numbers of the calls the filter knows, for x86-64 and 64-bit Arm; absent where the architecture lacks the call.
_NUMBERS = {
    "x86_64": (
        "open 2 socket 41 connect 42 socketpair 53 clone 56 fork 57 vfork 58 execve 59 kill 62 truncate 76 "
        "rename 82 mkdir 83 rmdir 84 creat 85 link 86 unlink 87 symlink 88 chmod 90 chown 92 lchown 94 ptrace "
        "101 setpgid 109 setsid 112 rt_sigqueueinfo 129 mknod 133 mount 165 tkill 200 tgkill 234 openat 257 "
        "mkdirat 258 mknodat 259 fchownat 260 unlinkat 263 renameat 264 linkat 265 symlinkat 266 fchmodat 268 "
        "rt_tgsigqueueinfo 297 process_vm_readv 310 process_vm_writev 311 renameat2 316 execveat 322 bpf 321 "
        "pidfd_send_signal 424 io_uring_setup 425 clone3 435 openat2 437 pidfd_getfd 438 "
    ),
    "aarch64": (
        "mknodat 33 mkdirat 34 unlinkat 35 symlinkat 36 linkat 37 renameat 38 mount 40 truncate 45 fchmodat "
        "53 fchownat 54 openat 56 ptrace 117 kill 129 tkill 130 tgkill 131 rt_sigqueueinfo 138 setpgid 154 "
        "setsid 157 socket 198 socketpair 199 connect 203 clone 220 execve 221 rt_tgsigqueueinfo 240 "
        "process_vm_readv 270 process_vm_writev 271 renameat2 276 bpf 280 execveat 281 pidfd_send_signal 424 "
        "io_uring_setup 425 clone3 435 openat2 437 pidfd_getfd 438 "
    ),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_KILLED = {"fork", "vfork", "execve", "execveat"}
_ABSENT = {"clone3", "openat2", "io_uring_setup"}
"""Answered with ENOSYS, so that the C library falls back to a call whose arguments the filter can read."""

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def die_with_parent(parent: int) -> None:
    """This process gets SIGKILL when the thread that forked it ends; exits at once if that was already so."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process, where `kill_strays` finds them."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit(*, memory_bytes: int, cpu_secs: float, file_bytes: int, writable_only: bool = False) -> None:
    """Lowers this process's limits for good: address space above today's, processor time, size of files, no core.

    `writable_only` counts private writable memory instead of address space.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_DATA if writable_only else resource.RLIMIT_AS, used + memory_bytes)
    _lower(resource.RLIMIT_CPU, int(cpu_secs) + 1)
    _lower(resource.RLIMIT_FSIZE, file_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it: a flood of output would go on for ever.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def deny_system_calls() -> bool:
    """Installs the filter described above for this process and its threads; false where the kernel has none."""
    machine = platform.machine()
    if machine not in _NUMBERS:
        return False
    program = _filter(machine, os.getpid())
    code = ctypes.create_string_buffer(b"".join(program))
    fprog = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(_LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(fprog), 0, 0) == 0)


def _filter(machine: str, pid: int) -> list[bytes]:
    """A BPF program over `struct seccomp_data {int nr; u32 arch; u64 ip; u64 args[6]}`, little-endian."""

    def op(code: int, operand: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, jump_true, jump_false, operand)

    def argument(index: int) -> bytes:
        return op(_LOAD, 16 + 8 * index)

    deny = op(_RETURN, _ERROR | errno.EPERM)
    kill, allow = op(_RETURN, _KILL), op(_RETURN, _ALLOW)
    program = [op(_LOAD, 4), op(_EQUAL, _AUDIT_ARCH[machine], 1, 0), kill, op(_LOAD, 0)]
    if machine == "x86_64":
        program += [op(0x35, 0x40000000, 0, 1), kill]  # the x32 calls: other numbers for the same things
    words = _NUMBERS[machine].split()
    for name, number in zip(words[::2], map(int, words[1::2]), strict=True):
        if name in _KILLED:
            body = [kill]
        elif name in _ABSENT:
            body = [op(_RETURN, _ERROR | errno.ENOSYS)]
        elif name == "clone":
            body = [argument(0), op(_ANY_BIT, _CLONE_THREAD, 1, 0), kill, allow]
        elif name in ("kill", "tgkill"):
            body = [argument(0), op(_EQUAL, pid, 1, 0), deny, allow]
        elif name in ("open", "openat"):
            body = [argument(1 if name == "open" else 2), op(_ANY_BIT, _WRITING, 0, 1), deny, allow]
        else:
            body = [deny]
        program += [op(_EQUAL, number, 0, len(body)), *body]
    return [*program, allow]


def children() -> list[int]:
    """Process ids of this process's children, zombies included."""
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == me:
                        found.append(int(entry.name))
        return found


def kill_strays(known: set[int], patience_secs: float = 5.0) -> int:
    """Kills and reaps every child of this process that is not in `known`, and theirs as they arrive; returns how many.

    Needs `become_subreaper`. Only one thread may reap in this process.
    """
    killed, deadline = 0, time.monotonic() + patience_secs
    while strays := [pid for pid in children() if pid not in known]:
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strays:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
                killed += 1
        if time.monotonic() > deadline:
            break
    return killed
