"""A model as it is here: its graph, as the service takes it, its weights, which stay, and what it came from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidInput, InvalidModel
from pitchpipe.frontends import FRONTENDS, SUFFIXES
from pitchpipe.model.reference import FileSource, FunctionSource, ModuleSource, NoSource, Source
from pitchpipe.processes.plugins import step
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.precision import tf32_of
from pitchpipe.wire.target import Target

MAX_EXAMPLE = 1 << 28
"""Elements of an example input."""
NO_MODEL = "a model is a path, an ONNX model or its bytes, a torch module, TorchScript or a function of JAX"


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A model's graph and weights, and what ran it before."""

    name: str
    format: ModelFormat
    data: bytes
    weights: dict[str, Any]
    source: Source = field(default_factory=NoSource, compare=False, repr=False)


def arguments_of(example_inputs: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """The example inputs, one for each argument. Raises InvalidInput for a tensor, an array or a mapping in their place."""
    if example_inputs is None:
        return None
    if isinstance(example_inputs, (Mapping, str, bytes)) or hasattr(example_inputs, "dtype"):
        name = type(example_inputs).__name__
        raise InvalidInput(f"example inputs are a tuple with an item for each argument, such as (x,), not {name}")
    return tuple(example_inputs)


def parse_input(text: str) -> Any:
    """An array of zeros from a type and a shape, written as float32[1,3,224,224]; raises InvalidInput."""
    extents = r"[1-9]\d{0,8}(?:,[1-9]\d{0,8})*"
    found = re.fullmatch(rf"(bool|u?int(?:8|16|32|64)|float(?:16|32|64))\[({extents})?\]", text)
    if found is None:
        raise InvalidInput(f"the input {text[:80]!r} is no type and shape; write them as float32[1,3,224,224]")
    shape = [int(extent) for extent in (found[2] or "").split(",") if extent]
    if math.prod(shape) > MAX_EXAMPLE:
        raise InvalidInput(f"the input {text[:80]!r} has more than {MAX_EXAMPLE} elements")
    import numpy as np

    return np.zeros(shape, found[1])


def read_model(
    path: Path, *, trust: bool, example_inputs: Sequence[Any] | None = None, precision: str = "ieee"
) -> LocalModel:
    """Reads a model file; `example_inputs` are for TorchScript, which does not tell their shapes, and ONNX, which may not.

    `precision` is as for `local_model`. Raises InvalidInput for an unknown suffix, for a file that can run code and is not
    trusted, and for examples that contradict the file.
    """
    return with_precision(_read_model(path, trust, example_inputs), tf32_of(precision))


def with_precision(model: LocalModel, tf32: Sequence[str]) -> LocalModel:
    """The model, whose contractions named in `tf32` may be computed by TF32 where a device does (wire/precision.py)."""
    return replace(model, data=step("set_precision")(model.data, model.format.value, tf32)) if tf32 else model


def _read_model(path: Path, trust: bool, example_inputs: Sequence[Any] | None) -> LocalModel:
    try:
        return _opened(path, trust, example_inputs)
    except InvalidModel as error:
        raise type(error)(f"{path}: {error.detail}") from error


def _opened(path: Path, trust: bool, example_inputs: Sequence[Any] | None) -> LocalModel:
    model_format, data = read_file(path, trust=trust)
    if FRONTENDS[model_format].is_local:
        data, weights = step("convert_local")(path, model_format, example_inputs, trusted=trust)
        source = _file_source(path, model_format, data, tuple(example_inputs or ()), trust)
        return LocalModel(name=path.stem, format=ModelFormat.RELAX, data=data, weights=weights, source=source)
    weights = {}
    source = NoSource(reason=f"a {model_format} file tells no framework")
    if model_format is ModelFormat.ONNX:
        stripped = step("strip_onnx")(data, external_dir=path.parent, examples=example_inputs)
        data, weights = stripped.data, stripped.weights
        source = FileSource(origin=path, format=model_format, examples=tuple(example_inputs or ()))
    return LocalModel(name=path.stem, format=model_format, data=data, weights=weights, source=source)


def read_file(path: Path, *, trust: bool) -> tuple[ModelFormat, bytes]:
    """A model file's format, which its suffix tells, and its bytes.

    Raises InvalidInput for an unknown suffix, for a file that cannot be read, and for one that can run code and is not
    trusted.
    """
    model_format = SUFFIXES.get(path.suffix)
    if model_format is None:
        raise InvalidInput(f"{path}: the suffix must be one of {', '.join(sorted(SUFFIXES))}")
    if FRONTENDS[model_format].runs_code and not trust:
        raise InvalidInput(f"{path.name}: opening a {model_format} file can run code; pass --trust if you made it")
    try:
        return model_format, path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error


def local_model(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    keywords: Mapping[str, Any] | None = None,
    numbers: bool = False,
    trust: bool = False,
    precision: str = "ieee",
) -> LocalModel:
    """The graph and the weights of a model: a path, an ONNX model or its bytes, a torch module, TorchScript or a jitted
    function of JAX with example inputs, or what jax.export made. `keywords` are example arguments by name, of a torch
    module. With `numbers`, numbers among a module's results are left out; else such a module is refused.

    `precision` "tf32" allows float32 products and convolutions to be computed by TF32 on a GPU, "ieee" does not; it is a
    part of the graph. Raises InvalidInput for any other.
    """
    return with_precision(_local_model(model, example_inputs, keywords or {}, numbers, trust), tf32_of(precision))


def _local_model(
    model: Any, example_inputs: Sequence[Any] | None, keywords: Mapping[str, Any], numbers: bool, trust: bool
) -> LocalModel:
    example_inputs = arguments_of(example_inputs)
    if isinstance(model, LocalModel):
        return model
    if keywords and not hasattr(model, "state_dict"):
        raise InvalidInput("only a torch module takes example inputs by name")
    if hasattr(model, "SerializeToString"):  # a protobuf in memory
        try:
            model = bytes(model.SerializeToString())
        except ValueError as error:  # of more than two gigabytes
            raise InvalidInput(f"the ONNX model cannot be serialised: {error}; give its path") from error
    if isinstance(model, (str, Path)):
        return _read_model(Path(model), trust, example_inputs)
    if isinstance(model, bytes):
        stripped = step("strip_onnx")(model, examples=example_inputs)
        source: Source = FileSource(origin=model, format=ModelFormat.ONNX, examples=tuple(example_inputs or ()))
        return LocalModel(
            name="model", format=ModelFormat.ONNX, data=stripped.data, weights=stripped.weights, source=source
        )
    stablehlo = _stablehlo(model, example_inputs)
    if stablehlo is not None:
        data, weights = step("convert_local")(stablehlo, ModelFormat.STABLEHLO)
        name = str(getattr(model, "fun_name", None) or getattr(model, "__name__", "model"))
        source = FunctionSource(origin=model, examples=example_inputs)
        return LocalModel(name=name, format=ModelFormat.RELAX, data=data, weights=weights, source=source)
    if not callable(model):
        raise InvalidInput(f"{NO_MODEL}, not {type(model).__name__}")
    if example_inputs is None:
        raise InvalidInput(f"{type(model).__name__} needs example inputs, such as (x,)")
    data, weights = step("export_torch")(model, example_inputs, keywords, numbers=numbers)
    source = ModuleSource(origin=model, examples=example_inputs, keywords=keywords)
    name = type(model).__name__
    return LocalModel(name=name, format=ModelFormat.RELAX, data=data, weights=weights, source=source)


def _file_source(path: Path, model_format: ModelFormat, relax: bytes, examples: tuple[Any, ...], trust: bool) -> Source:
    """Of a file that was converted here, `relax` being what it was converted to."""
    if not FRONTENDS[model_format].framework:
        return NoSource(reason=f"a {model_format} file tells no framework")
    specs: tuple[Any, ...] = ()
    if model_format is ModelFormat.STABLEHLO:
        specs = tuple((tuple(spec["shape"]), spec["dtype"]) for spec in json.loads(relax)["inputs"])
    return FileSource(origin=path, trust=trust, format=model_format, examples=examples, specs=specs)


def _stablehlo(model: Any, example_inputs: Sequence[Any] | None) -> bytes | None:
    """What JAX makes of one of its functions, or had made of one that was exported; None for anything else.

    Lowering, unlike exporting, keeps functions such as erfc whole, which is the better kernel.
    """
    if hasattr(model, "mlir_module_serialized"):
        return bytes(model.mlir_module_serialized)
    if type(model).__module__.partition(".")[0] not in ("jax", "jaxlib") or not hasattr(model, "lower"):
        return None
    if example_inputs is None:
        raise InvalidInput("a function of JAX needs example inputs")
    return str(model.lower(*example_inputs).as_text()).encode()


def detect_target(value: str) -> Target:
    """JSON with TVM's attribute names; `auto` and a device's name (`cpu`, `cuda`, `cuda:1`) ask this machine."""
    if value.lstrip().startswith("{"):
        return Target.parse(value)
    found: Target = step("detect_target")(value)
    return found
