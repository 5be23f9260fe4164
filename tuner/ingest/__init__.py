"""Reading models: ONNX, torch.export programs and Relax modules, all into one Relax module with its tensors.

MetaSchedule's pair of files is read here as well: it holds no model but tensor programs with traces (imported.py).

An uploaded model is untrusted. `ingest` parses it in a child process that is limited in CPU, memory, wall time and file
access (isolation.py), judges it there, and gets back either TVM JSON or an error that names the cause.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pitchpipe.errors import InvalidModel
from pitchpipe.frontends import FRONTENDS
from pitchpipe.wire.job import ModelFormat

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CHECK_LIMITS",
    "DEFAULT_LIMITS",
    "IngestLimits",
    "IngestedModel",
    "TensorSpec",
    "container",
    "convert",
    "ingest",
    "ingest_bytes",
    "parse_container",
]

CONTAINER_VERSION = 1
"""Version of the `relax` format."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A tensor that a model takes."""

    name: str
    """As the model's author named it."""
    shape: tuple[int, ...]
    dtype: str
    """NumPy's name of the element type."""

    @classmethod
    def parse(cls, value: Any) -> TensorSpec:
        """From JSON; raises InvalidModel."""
        if not isinstance(value, dict) or set(value) != {"name", "shape", "dtype"}:
            raise InvalidModel("a tensor is an object of name, shape and dtype")
        name, shape, dtype = value["name"], value["shape"], value["dtype"]
        if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(shape, list):
            raise InvalidModel("a tensor's name and dtype are strings and its shape is a list")
        if not all(type(extent) is int for extent in shape):
            raise InvalidModel(f"the shape of tensor {name[:200]!r} is not a list of integers")
        return cls(name=name, shape=tuple(shape), dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class IngestedModel:
    """A model in the one form that everything behind this folder works on."""

    ir: str
    """TVM JSON of a module with one Relax function, main(*inputs, *params), all shapes static, `num_input` set."""
    inputs: tuple[TensorSpec, ...]
    """What changes with every run, in order."""
    params: tuple[TensorSpec, ...]
    """The weights, in order."""


@dataclass(frozen=True, kw_only=True)
class IngestLimits:
    """What one model may cost to read; past a limit the child is killed and the model refused."""

    data_bytes: int = 2 << 30
    """Size of the file."""
    cpu_secs: int = 25
    wall_secs: float = 28.0
    memory_bytes: int = 6 << 30
    """Address space of the child, about 1 GiB of which is libraries."""
    nodes: int = 100_000
    """Operators in the graph."""
    elements: int = 1 << 31
    """Of one tensor, weights and intermediate results included."""
    constant_bytes: int = 256 << 20
    """Of all constants that stay in the graph, and of the answer."""


DEFAULT_LIMITS = IngestLimits()
CHECK_LIMITS = IngestLimits(cpu_secs=18, wall_secs=20.0, nodes=20_000)
"""For a model that somebody waits to have judged: what is too slow to read is refused within a client's patience, and
what is read can be split within minutes (10 s for 6,000 nodes, growing with the square)."""


def ingest(
    data: bytes, format: ModelFormat, limits: IngestLimits = DEFAULT_LIMITS, *, trusted: bool = False
) -> IngestedModel:
    """Reads a model in a disposable child.

    `trusted` allows TVMScript, which is code: it is run, with the same limits. A `.pt2` archive is never read here: its
    owner converts it where it lies (torch_export.from_pt2). Raises InvalidModel, UnsupportedOperator, UnsupportedShape
    or TooLarge, each naming the cause, within the wall limit.
    """
    if format is ModelFormat.METASCHEDULE:
        raise InvalidModel("MetaSchedule's files hold schedules of tensor programs, not a model")
    return parse_container(ingest_bytes(data, format, limits, trusted=trusted))


def ingest_bytes(
    data: bytes, format: ModelFormat, limits: IngestLimits = DEFAULT_LIMITS, *, trusted: bool = False
) -> bytes:
    """The same as bytes to keep: the `relax` format, or for METASCHEDULE the form of imported.py. Raises as `ingest`."""
    from tuner.ingest.isolation import run_child

    frontend = FRONTENDS[format]
    if frontend.opened_in_process or (frontend.runs_code and not trusted):
        raise InvalidModel(f"a {format} file can run code when it is read: convert it on the client, with trust given")
    if frontend.holds_weights:
        raise InvalidModel(f"a {format} file holds weights: convert it on the client, which keeps them")
    return run_child(data, format, limits)


def convert(
    data: bytes, format: ModelFormat, limits: IngestLimits = DEFAULT_LIMITS
) -> tuple[bytes, dict[str, np.ndarray]]:
    """The `relax` format of a file that holds graph and weights in one, and the weights by name.

    Read in the same disposable child. Raises as `ingest`; InvalidModel too where the format's library is not installed.
    """
    from tuner.ingest.isolation import run_child, split_weights

    frontend = FRONTENDS[format]
    if find_spec(frontend.library) is None:
        raise InvalidModel(f"reading a {format} file needs {frontend.library}: install pitchpipe[{frontend.extra}]")
    return split_weights(run_child(data, format, limits))


def container(model: IngestedModel) -> bytes:
    """The `relax` format: JSON of the Relax module and its tensors; the same model gives the same bytes."""
    value = {"schema_version": CONTAINER_VERSION, **asdict(model)}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def parse_container(data: bytes) -> IngestedModel:
    """Reads the `relax` format, without judging the module in it; raises InvalidModel."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"the file is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict) or set(value) != {"schema_version", "ir", "inputs", "params"}:
        raise InvalidModel("a relax model is an object of schema_version, ir, inputs and params")
    if value["schema_version"] != CONTAINER_VERSION:
        raise InvalidModel(f"schema_version {str(value['schema_version'])[:40]} is not known; {CONTAINER_VERSION} is")
    if not isinstance(value["ir"], str) or not all(isinstance(value[key], list) for key in ("inputs", "params")):
        raise InvalidModel("ir is a string; inputs and params are lists")
    return IngestedModel(
        ir=value["ir"],
        inputs=tuple(map(TensorSpec.parse, value["inputs"])),
        params=tuple(map(TensorSpec.parse, value["params"])),
    )
