"""What runs inside the child that parses one model: confine, parse, judge, answer, end.

The answer is one byte and a body: `+` and what `ingest_bytes` returns, or what `join_weights` makes where the file held
weights, or `-` and the JSON of an error's code and detail. Standard output is kept for it alone; whatever the libraries
print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pkgutil import resolve_name

from pitchpipe.errors import InvalidModel, PitchpipeError, TooLarge
from pitchpipe.frontends import FRONTENDS
from pitchpipe.processes.launch import package_roots
from pitchpipe.wire.job import ModelFormat
from tuner.ingest import IngestedModel, IngestLimits, container
from tuner.ingest.isolation import confine_files, confine_resources, join_weights, read_request
from tuner.syscalls import deny_system_calls


def main() -> None:
    """Reads the request from standard input and ends the process."""
    header, data = read_request(sys.stdin.buffer)
    limits = IngestLimits(**header["limits"])  # type: ignore[arg-type]
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    confine_resources(limits.cpu_secs, limits.memory_bytes)
    try:
        read = _survey() if header["survey"] else reader(ModelFormat(str(header["format"])))
        deny_system_calls()
        confine_files([sys.prefix, sys.base_prefix, *(os.path.join(root, "tuner") for root in package_roots())])
        answer = b"+" + read(data, limits)
    except PitchpipeError as error:
        answer = _problem(error)
    except MemoryError:
        answer = _problem(TooLarge(f"the model needs more than {limits.memory_bytes} bytes of memory to read"))
    except RecursionError:
        answer = _problem(InvalidModel("the model nests too deeply"))
    except Exception as error:  # noqa: BLE001  # the parsers raise whatever they met; the parent needs a cause
        reason = (str(error).strip().splitlines() or [""])[-1]
        answer = _problem(InvalidModel(f"the model cannot be read: {type(error).__name__}: {reason[:500]}"))
    with os.fdopen(answer_fd, "wb") as stream:
        stream.write(answer)
    # Not sys.exit: the compiler's threads and destructors have nothing more to do.
    os._exit(0)


def _problem(error: PitchpipeError) -> bytes:
    return b"-" + json.dumps({"code": error.code, "detail": error.detail}).encode()


def reader(format: ModelFormat) -> Callable[[bytes, IngestLimits], bytes]:
    """The reader of a format, everything it needs imported; it returns the bytes to answer with."""
    read = resolve_name(FRONTENDS[format].reader)

    def answer(data: bytes, limits: IngestLimits) -> bytes:
        found = read(data, limits)
        if isinstance(found, IngestedModel):
            return container(found)
        return join_weights(*found) if isinstance(found, tuple) else bytes(found)

    return answer


def _survey() -> Callable[[bytes, IngestLimits], bytes]:
    from tuner.ingest.onnx.survey import survey_bytes

    return survey_bytes
