"""How a model's float32 products and convolutions may be computed: as an attribute of its main function (decision 0043).

PyTorch calls the two ways of `fp32_precision` "ieee" and "tf32". A model says which of its contractions may be TF32, whose
operands have 10 bits of fraction; without a word all are IEEE. An ONNX file says it among its metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitchpipe.errors import InvalidModel
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.precision import CONTRACTIONS
from tuner.graph.precision import TF32
from tuner.ingest import container, parse_container
from tuner.tvm_compat import load_ir, save_ir, with_function

METADATA = "pitchpipe.tf32"
"""Key among an ONNX file's metadata."""


def set_precision(data: bytes, model_format: str, tf32: Sequence[str]) -> bytes:
    """Step: a model in the `relax` or the ONNX format whose contractions named in `tf32` may be TF32.

    Raises InvalidModel for a format that cannot say so.
    """
    told = " ".join(each for each in CONTRACTIONS if each in tf32)
    if not told:
        return data
    if ModelFormat(model_format) is ModelFormat.RELAX:
        model = parse_container(data)
        module = load_ir(model.ir)
        marked = with_function(module, "main", module["main"].with_attr(TF32, told))
        return container(type(model)(ir=save_ir(marked), inputs=model.inputs, params=model.params))
    if ModelFormat(model_format) is ModelFormat.ONNX:
        from pitchpipe.model.strip import parse_onnx

        proto = parse_onnx(data)
        proto.metadata_props.add(key=METADATA, value=told)
        return bytes(proto.SerializeToString(deterministic=True))
    raise InvalidModel(f"a {model_format} file cannot say that it may be computed in TF32")


def tf32_of_onnx(proto: Any) -> str:
    """What an ONNX file says, in our order; empty where it says nothing."""
    told = next((each.value for each in proto.metadata_props if each.key == METADATA), "")
    return " ".join(each for each in CONTRACTIONS if each in told.split())
