"""The walls around the child that parses a model.

Parent side: `run_child` launches a child (pitchpipe/processes/launch.py) with nothing but its own code on the path, in a
session of its own, in an empty folder, with a scrubbed environment; feeds it the model through a file descriptor; reads one
answer of bounded size; and kills the whole process group when the wall limit passes or the answer is there. If the parent is
killed itself, so is the child.

Child side: `confine_resources` sets CPU, memory and file-size limits; `confine_files` takes away, through Landlock,
every write, execution and TCP right, and every read outside the interpreter, its libraries and this package; the filter
of tuner/syscalls.py takes away sockets of any kind, forks, and signals to others. Where the kernel has no
Landlock the child can still read what its user can read (and send it nowhere but into its answer), so run the service as
a user that owns nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import selectors
import signal
import struct
import sys
import tempfile
import time
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

from pitchpipe.errors import InvalidModel, TooLarge, from_problem
from pitchpipe.processes.launch import launch
from pitchpipe.wire.job import ModelFormat

if TYPE_CHECKING:
    import numpy as np

    from tuner.ingest import IngestLimits

_STDERR_BYTES = 4096
_FRAME = struct.Struct("<Q")


def run_child(data: bytes, format: ModelFormat, limits: IngestLimits, *, survey: bool = False) -> bytes:
    """What the child made of the model: the `relax` format, followed by weights where the file held them.

    With `survey`, of an ONNX file, the list of all that would be refused (onnx/survey.py). Raises the error that the
    child names.
    """
    if len(data) > limits.data_bytes:
        raise TooLarge(f"the model has {len(data)} bytes; the limit is {limits.data_bytes}")
    header = json.dumps({"format": format.value, "limits": asdict(limits), "survey": survey}).encode()
    with (
        tempfile.TemporaryDirectory(prefix="pitchpipe-ingest-") as folder,
        tempfile.TemporaryFile() as stdin,
        contextlib.ExitStack() as ours,
        contextlib.ExitStack() as theirs,
    ):
        stdin.write(_FRAME.pack(len(header)) + header)
        stdin.write(data)
        stdin.seek(0)
        (answered, answers), (complained, complaints) = os.pipe(), os.pipe()
        for stack, descriptors in ((ours, (answered, complained)), (theirs, (answers, complaints))):
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
        child = launch(
            "tuner.ingest.child:main",
            stdin=stdin,
            stdout=answers,
            stderr=complaints,
            environment=_environment(folder),
            folder=folder,
            isolated=True,
        )
        try:
            theirs.close()
            weights = limits.data_bytes if format in (ModelFormat.STABLEHLO, ModelFormat.TFLITE) else 0
            answer, complaint = _read(answered, complained, limits, 2 * limits.constant_bytes + weights)
            # The answer ends when the child closes its side; give it a moment to be reaped with its own exit status.
            if not child.wait(10):
                raise InvalidModel("the parser did not end after its answer")
        finally:
            child.close()
    assert child.returncode is not None
    return _judge(answer, complaint, child.returncode, limits)


def _environment(folder: str) -> dict[str, str]:
    single = dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    found = {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **single}
    if "LD_LIBRARY_PATH" in os.environ:
        found["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return found


def _read(answered: int, complained: int, limits: IngestLimits, cap: int) -> tuple[bytes, bytes]:
    """Standard output whole, up to its cap, and the end of standard error; raises InvalidModel at the wall limit."""
    deadline = time.monotonic() + limits.wall_secs
    answer, complaint = bytearray(), b""
    with selectors.DefaultSelector() as selector:
        for descriptor in (answered, complained):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise InvalidModel(f"the model took longer than {limits.wall_secs:g} s to read")
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 20)
                if not chunk:
                    selector.unregister(key.fd)
                elif key.fd == answered:
                    answer += chunk
                    if len(answer) > cap:
                        raise TooLarge(f"the model's graph is larger than {cap} bytes")
                else:
                    complaint = (complaint + chunk)[-_STDERR_BYTES:]
    return bytes(answer), complaint


def _judge(answer: bytes, complaint: bytes, status: int, limits: IngestLimits) -> bytes:
    if status == 0 and answer[:1] == b"+":
        return answer[1:]
    if status == 0 and answer[:1] == b"-":
        try:
            problem = json.loads(answer[1:])
            error = from_problem(400, str(problem["code"]), str(problem["detail"])[:2000])
        except (ValueError, KeyError, TypeError, RecursionError):
            error = InvalidModel("the parser gave an answer that cannot be read")
        raise error
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise InvalidModel(f"the model took more than {limits.cpu_secs} s of CPU time, or too much memory, to read")
    if status < 0:
        name = signal.Signals(-status).name
        raise InvalidModel(f"the parser crashed ({name}): the model is malformed or nests too deeply")
    lines = complaint.decode(errors="replace").strip().splitlines() or ["no reason given"]
    raise InvalidModel(f"the parser failed: {lines[-1][:500]}")


def join_weights(model: bytes, weights: bytes) -> bytes:
    """Child side: the answer for a file that held weights."""
    return _FRAME.pack(len(model)) + model + weights


def split_weights(answer: bytes) -> tuple[bytes, dict[str, np.ndarray]]:
    """What `join_weights` joined: the `relax` format, and its parameters' values by name."""
    import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
    import numpy as np

    from tuner.ingest import parse_container

    (length,) = _FRAME.unpack_from(answer)
    model = answer[_FRAME.size : _FRAME.size + length]
    offset, weights = _FRAME.size + length, {}
    for spec in parse_container(model).params:
        dtype, count = np.dtype(spec.dtype), math.prod(spec.shape)
        weights[spec.name] = np.frombuffer(answer, dtype, count, offset).reshape(spec.shape)
        offset += count * dtype.itemsize
    return model, weights


def read_request(stream: IO[bytes]) -> tuple[dict[str, object], bytes]:
    """Child side: the header and the model that `run_child` wrote."""
    (length,) = _FRAME.unpack(stream.read(_FRAME.size))
    header: dict[str, object] = json.loads(stream.read(length))
    return header, stream.read()


def confine_resources(cpu_secs: int, memory_bytes: int) -> None:
    """CPU seconds, address space, no file writes, few descriptors, no core dump. Cannot be undone."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_secs, cpu_secs + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# Landlock, from the kernel's include/uapi/linux/landlock.h. Access rights are bits; later versions know more of them.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 5: 16}
"""ABI version -> number of file rights it knows."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def confine_files(readable: list[str]) -> bool:
    """Leaves this process only the right to read below `readable`: no write, no execution, no network.

    Cannot be undone. False where the kernel has no Landlock (before 5.13, or switched off), or not Linux.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, 0, _RULESET_VERSION_FLAG)
    if abi < 1:
        return False
    rights = (1 << max(count for version, count in _FILE_RIGHTS_BY_ABI.items() if version <= abi)) - 1
    attr = _RulesetAttr(fs=rights, net=3 if abi >= 4 else 0, scoped=3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attr), size, 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            rule = _PathBeneathAttr(allowed=_READ_FILE | _READ_DIR, parent_fd=descriptor)
            libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
            os.close(descriptor)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)
