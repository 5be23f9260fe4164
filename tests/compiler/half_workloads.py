"""Ten workloads in half precision whose sums are in single precision, as prepared models have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pitchpipe.wire.task import Workload
from tests.compiler.gpu_cases import Spec, functions
from tuner.tvm_compat import relax, save_ir
from tuner.workload.digest import workload_digest

op = relax.op
H = "float16"


def dense(rows: int, columns: int, length: int, *, gelu: bool = False, residual: bool = False) -> Workload:
    """A product with a bias, then GELU or a residual."""

    def make(b: Any, x: Any, w: Any, bias: Any, *r: Any) -> Any:
        y = b.emit(op.astype(b.emit(op.matmul(x, w, out_dtype="float32")), H))
        for other in (bias, *r):
            y = b.emit(op.add(y, other))
        return op.nn.gelu(y) if gelu else op.multiply(y, relax.const(1.0, H))

    more = [((1, rows, columns), H)] if residual else []
    return _workload(make, ((1, rows, length), H), ((length, columns), H), ((columns,), H), *more)


def batched(batch: int, rows: int, columns: int, length: int, *, scaled: bool = False) -> Workload:
    """A batched product, its result in half precision."""

    def make(b: Any, x: Any, y: Any) -> Any:
        z = b.emit(op.matmul(x, y, out_dtype="float32"))
        return op.astype(b.emit(op.multiply(z, relax.const(0.125, "float32"))) if scaled else z, H)

    return _workload(make, ((batch, rows, length), H), ((batch, length, columns), H))


def convolution(
    size: int,
    channels: int,
    outputs: int,
    *,
    window: int = 3,
    stride: int = 1,
    residual: bool = False,
    images: int = 1,
) -> Workload:
    """A convolution, channels last, with a bias, a residual and a ReLU."""

    def make(b: Any, x: Any, w: Any, *others: Any) -> Any:
        options = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": "float32"}
        y = b.emit(op.nn.conv2d(x, w, padding=window // 2, strides=stride, **options))
        y = b.emit(op.astype(y, H))
        for other in others:
            y = b.emit(op.add(y, other))
        return op.nn.relu(y)

    out = -(-size // stride)
    more = [((images, out, out, outputs), H)] if residual else []
    weight = (outputs, window, window, channels)
    return _workload(make, ((images, size, size, channels), H), (weight, H), ((1, 1, 1, outputs), H), *more)


def _workload(make: Callable[..., Any], *specs: Spec) -> Workload:
    (mod,) = functions(make, *specs)
    return Workload(digest=workload_digest(mod), ir=save_ir(mod))


TEN: dict[str, Callable[[], Workload]] = {
    "128x2304x768": lambda: dense(128, 2304, 768),
    "128x3072x768, GELU": lambda: dense(128, 3072, 768, gelu=True),
    "128x768x3072, residual": lambda: dense(128, 768, 3072, residual=True),
    "197x768x768, residual": lambda: dense(197, 768, 768, residual=True),
    "attention, scores": lambda: batched(12, 128, 128, 64, scaled=True),
    "attention, values": lambda: batched(12, 197, 64, 197),
    "3x3 56x56x64": lambda: convolution(56, 64, 64),
    "3x3 14x14x256, residual": lambda: convolution(14, 256, 256, residual=True),
    "3x3 stride 2 28x28x128": lambda: convolution(28, 128, 256, stride=2),
    "1x1 14x14x1024": lambda: convolution(14, 1024, 256, window=1),
}
