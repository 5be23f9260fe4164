"""The system-call filters (seccomp) of processes that touch what strangers sent. Linux on x86-64 and 64-bit Arm.

`deny_system_calls` is for a process that computes and answers through what it already holds: a fork or an exec kills it,
and it is "not permitted" to write files, to open sockets, to signal, trace or reprioritize others, to leave shared memory,
queues or keys in the kernel, to change the machine, or to escape its end with its parent. Threads, memory and reading
files stay free. `deny_leaving` is for one that must start programs and open devices: it keeps its process group and the
signal it gets when its parent ends, so that one kill of the group reaches everything it started, however fast it forks.

They are lists of what is denied, so a call that a future kernel adds is free until it is named here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Collection

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_CLONE_THREAD = 0x10000
_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _FOR_ALL_THREADS = 1, 1

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LATER = (  # The same numbers everywhere.
    "pidfd_send_signal 424 io_uring_setup 425 open_tree 428 move_mount 429 fsopen 430 fsmount 432 clone3 435 openat2 437 "
    "pidfd_getfd 438 process_madvise 440 mount_setattr 442 process_mrelease 448 fchmodat2 452 "
)
# Numbers of the calls the filters know; absent where the architecture lacks the call.
_NUMBERS = {
    "x86_64": (
        "open 2 shmget 29 socket 41 connect 42 socketpair 53 clone 56 fork 57 vfork 58 execve 59 kill 62 semget 64 "
        "msgget 68 truncate 76 rename 82 mkdir 83 rmdir 84 creat 85 link 86 unlink 87 symlink 88 chmod 90 fchmod 91 "
        "chown 92 fchown 93 lchown 94 ptrace 101 syslog 103 setuid 105 setgid 106 setpgid 109 setsid 112 setreuid 113 "
        "setregid 114 setgroups 116 setresuid 117 setresgid 119 setfsuid 122 setfsgid 123 capset 126 rt_sigqueueinfo 129 "
        "utime 132 mknod 133 setpriority 141 sched_setparam 142 sched_setscheduler 144 pivot_root 155 prctl 157 "
        "adjtimex 159 chroot 161 acct 163 settimeofday 164 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169 "
        "sethostname 170 setdomainname 171 iopl 172 ioperm 173 init_module 175 delete_module 176 quotactl 179 "
        "setxattr 188 lsetxattr 189 fsetxattr 190 removexattr 197 lremovexattr 198 fremovexattr 199 tkill 200 "
        "clock_settime 227 tgkill 234 utimes 235 mq_open 240 kexec_load 246 add_key 248 request_key 249 keyctl 250 "
        "ioprio_set 251 openat 257 mkdirat 258 mknodat 259 fchownat 260 futimesat 261 unlinkat 263 renameat 264 "
        "linkat 265 symlinkat 266 fchmodat 268 unshare 272 utimensat 280 rt_tgsigqueueinfo 297 perf_event_open 298 "
        "prlimit64 302 open_by_handle_at 304 clock_adjtime 305 setns 308 process_vm_readv 310 process_vm_writev 311 "
        "finit_module 313 sched_setattr 314 renameat2 316 kexec_file_load 320 bpf 321 execveat 322 userfaultfd 323 "
    )
    + _LATER,
    "aarch64": (
        "setxattr 5 lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 ioprio_set 30 mknodat 33 "
        "mkdirat 34 unlinkat 35 symlinkat 36 linkat 37 renameat 38 umount2 39 mount 40 pivot_root 41 truncate 45 "
        "chroot 51 fchmod 52 fchmodat 53 fchownat 54 fchown 55 openat 56 quotactl 60 utimensat 88 acct 89 capset 91 "
        "unshare 97 kexec_load 104 init_module 105 delete_module 106 clock_settime 112 syslog 116 ptrace 117 "
        "sched_setparam 118 sched_setscheduler 119 kill 129 tkill 130 tgkill 131 rt_sigqueueinfo 138 setpriority 140 "
        "reboot 142 setregid 143 setgid 144 setreuid 145 setuid 146 setresuid 147 setresgid 149 setfsuid 151 "
        "setfsgid 152 setpgid 154 setsid 157 setgroups 159 sethostname 161 setdomainname 162 prctl 167 settimeofday 170 "
        "adjtimex 171 mq_open 180 msgget 186 semget 190 shmget 194 socket 198 socketpair 199 connect 203 add_key 217 "
        "request_key 218 keyctl 219 clone 220 execve 221 swapon 224 swapoff 225 rt_tgsigqueueinfo 240 "
        "perf_event_open 241 prlimit64 261 open_by_handle_at 265 clock_adjtime 266 setns 268 process_vm_readv 270 "
        "process_vm_writev 271 finit_module 273 sched_setattr 274 renameat2 276 bpf 280 execveat 281 userfaultfd 282 "
        "kexec_file_load 294 "
    )
    + _LATER,
}
_KILLED = {"fork", "vfork", "execve", "execveat"}
_ABSENT = {"clone3", "openat2", "io_uring_setup"}
"""Answered with ENOSYS, so that the C library falls back to a call whose arguments the filter can read."""
_LEAVING = {"setpgid", "setsid", "prctl", "setns", "unshare", "capset"} | {
    f"set{kind}{who}id" for kind in ("", "re", "res", "fs") for who in "ug"
}
"""A change of identity would clear the signal at the parent's end."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def deny_system_calls() -> bool:
    """Installs the strict filter for all threads of this process, for good; false where the kernel has none."""
    return _install(None)


def deny_leaving() -> bool:
    """Installs the filter for a process that starts programs, likewise; they inherit it."""
    return _install(_LEAVING)


def _install(names: Collection[str] | None) -> bool:
    machine = platform.machine()
    if machine not in _NUMBERS:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    program = _filter(machine, os.getpid(), names)
    code = ctypes.create_string_buffer(b"".join(program))
    fprog = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    if libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _FOR_ALL_THREADS, ctypes.c_char_p(fprog)) == 0:
        return True
    return bool(libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(fprog), 0, 0) == 0)  # this thread and those it starts


def _op(code: int, operand: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, jump_true, jump_false, operand)


def _argument(index: int) -> bytes:
    """Loads the lower half of an argument."""
    return _op(_LOAD, 16 + 8 * index)


_DENY, _DIE, _PASS = _op(_RETURN, _ERROR | errno.EPERM), _op(_RETURN, _KILL), _op(_RETURN, _ALLOW)


def _filter(machine: str, pid: int, names: Collection[str] | None) -> list[bytes]:
    """A BPF program over `struct seccomp_data {int nr; u32 arch; u64 ip; u64 args[6]}`, little-endian.

    `names` are the calls it judges; all that are known by default. `pid` is this process: what a call names when it
    concerns nobody else.
    """
    program = [_op(_LOAD, 4), _op(_EQUAL, _AUDIT_ARCH[machine], 1, 0), _DIE, _op(_LOAD, 0)]
    if machine == "x86_64":
        program += [_op(_AT_LEAST, 0x40000000, 0, 1), _DIE]  # the x32 calls: other numbers for the same things
    words = _NUMBERS[machine].split()
    for name, number in zip(words[::2], map(int, words[1::2]), strict=True):
        if names is None or name in names:
            body = _judgement(name, pid)
            program += [_op(_EQUAL, number, 0, len(body)), *body]
    return [*program, _PASS]


def _judgement(name: str, pid: int) -> list[bytes]:
    """What is done with a call of that name. Every way through it returns: the call's number is overwritten."""
    if name in _KILLED:
        return [_DIE]
    if name in _ABSENT:
        return [_op(_RETURN, _ERROR | errno.ENOSYS)]
    if name == "clone":
        return [_argument(0), _op(_ANY_BIT, _CLONE_THREAD, 1, 0), _DIE, _PASS]
    if name in ("kill", "tgkill"):
        return [_argument(0), _op(_EQUAL, pid, 1, 0), _DENY, _PASS]
    if name == "prlimit64":
        return [_argument(0), _op(_EQUAL, 0, 2, 0), _op(_EQUAL, pid, 1, 0), _DENY, _PASS]
    if name == "prctl":
        own = _op(_EQUAL, _PR_SET_PDEATHSIG, 1, 0), _op(_EQUAL, _PR_SET_CHILD_SUBREAPER, 0, 1)
        return [_argument(0), *own, _DENY, _PASS]
    if name in ("open", "openat"):
        return [_argument(1 if name == "open" else 2), _op(_ANY_BIT, _WRITING, 0, 1), _DENY, _PASS]
    return [_DENY]
