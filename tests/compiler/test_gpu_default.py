"""Default schedules on a GPU: right for any shape and type, within the limits, and of the kernels that they should be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler.attention import attention
from tests.compiler.gpu_cases import Spec, check, functions, one_function
from tests.compiler.gpu_programs import HOPPER, TARGET
from tuner.measure.device_compiler import DeviceCompiler, NotCompiled
from tuner.measure.gpu_code import lower
from tuner.schedule.trace import apply_trace
from tuner.space.gpu.limits import Limits
from tuner.space.gpu.tiles import MUCH, Product, best_tile, cycles
from tuner.target_kinds.cuda.default import default_trace
from tuner.tvm_compat import load_ir, relax, save_ir, to_tvm_target, topi
from tuner.workload.digest import workload_digest

op = relax.op

F, H, B = "float32", "float16", "bfloat16"


def layer_norm(b: Any, x: Any, g: Any, s: Any) -> Any:
    return op.nn.layer_norm(x, g, s, axes=[-1])


def group_norm(b: Any, x: Any, g: Any, s: Any) -> Any:
    return op.nn.group_norm(x, g, s, num_groups=8, channel_axis=1, axes=[2, 3])


def depthwise(b: Any, x: Any, w: Any) -> Any:
    channels = int(x.ty.shape[3])
    y = b.emit(op.nn.conv2d(x, w, padding=1, groups=channels, data_layout="NHWC", kernel_layout="HWOI"))
    return op.clip(y, 0, 6)


def cast_softmax(b: Any, x: Any) -> Any:
    return op.astype(b.emit(op.nn.softmax(b.emit(op.astype(x, F)))), str(x.ty.dtype))


def convolution(layout: str, kernel: str, stride: int = 1, padding: int = 1) -> Callable[..., Any]:
    """A convolution that sums in single precision, with what is added to it, and a ReLU."""

    def make(b: Any, x: Any, w: Any, *others: Any) -> Any:
        options = {"data_layout": layout, "kernel_layout": kernel, "out_dtype": F}
        y = b.emit(op.nn.conv2d(x, w, padding=padding, strides=stride, **options))
        y = b.emit(op.astype(y, str(x.ty.dtype))) if str(x.ty.dtype) != F else y
        for other in others:
            y = b.emit(op.add(y, other))
        return op.nn.relu(y)

    return make


def dense(b: Any, x: Any, w: Any, bias: Any) -> Any:
    y = b.emit(op.matmul(x, w, out_dtype=F))
    return op.nn.gelu(b.emit(op.add(b.emit(op.astype(y, str(x.ty.dtype))), bias)))


CASES: dict[str, tuple[Callable[..., Any], tuple[Spec, ...], int]] = {
    # name: (what, arguments, kernels)
    "gelu": (lambda b, x: op.nn.gelu(x), (((64, 768), H),), 1),
    "relu in single precision between conversions": (
        lambda b, x: op.astype(b.emit(op.nn.relu(b.emit(op.astype(x, F)))), H),
        (((64, 1024), H),),
        1,
    ),
    "relu of rows that no block of threads divides": (
        lambda b, x: op.astype(b.emit(op.nn.relu(b.emit(op.astype(x, F)))), H),
        (((33, 1016), H),),
        1,
    ),
    "addition of odd width": (lambda b, x, y: op.add(x, y), (((7, 511), F), ((7, 511), F)), 1),
    "one element": (lambda b, x: op.exp(x), (((1,), F),), 1),
    "comparison": (lambda b, x, y: op.less(x, y), (((33, 64), F), ((33, 64), F)), 1),
    "sum of integers": (lambda b, x: op.sum(x, axis=[1]), (((33, 300), "int64"),), 1),
    "bytes": (lambda b, x, y: op.add(x, y), (((16, 128), "int8"), ((16, 128), "int8")), 1),
    "broadcast": (lambda b, x, y: op.multiply(x, y), (((8, 5, 64), H), ((5, 1), H)), 1),
    "concatenation": (lambda b, x, y: op.concat([x, y], axis=1), (((3, 10, 8), B), ((3, 6, 8), B)), 1),
    "border": (lambda b, x: op.nn.pad(x, (0, 0, 1, 1, 1, 1, 0, 0)), (((2, 12, 12, 64), H),), 1),
    "activated concatenation": (
        lambda b, x, y: op.nn.relu(b.emit(op.concat([x, y], axis=1))),
        (((3, 1, 64), H), ((3, 7, 64), H)),
        1,
    ),
    "transpose": (lambda b, x: op.permute_dims(x, [0, 2, 1]), (((3, 197, 99), H),), 1),
    "transpose of heads": (lambda b, x: op.permute_dims(x, [0, 2, 1, 3]), (((2, 33, 4, 64), F),), 1),
    "images to channels last": (lambda b, x: op.permute_dims(x, [0, 2, 3, 1]), (((2, 40, 14, 14), H),), 1),
    "softmax": (lambda b, x: op.nn.softmax(x), (((12, 64, 128), F),), 1),
    "softmax in half precision": (cast_softmax, (((24, 197), H),), 1),
    "softmax of bfloat16": (cast_softmax, (((50, 512), B),), 1),
    "softmax of short rows": (lambda b, x: op.nn.softmax(x), (((50, 10), F),), 1),
    "softmax over channels": (lambda b, x: op.nn.softmax(x, axis=1), (((1, 21, 32, 63), F),), 1),
    "layer norm": (layer_norm, (((50, 768), F), ((768,), F), ((768,), F)), 1),
    "layer norm of 1000": (layer_norm, (((32, 1000), H), ((1000,), H), ((1000,), H)), 1),
    "rms norm": (lambda b, x, g: op.nn.rms_norm(x, g, axes=[-1]), (((64, 512), H), ((512,), H)), 1),
    "group norm": (group_norm, (((40, 32, 8, 8), F), ((32,), F), ((32,), F)), 1),
    "one long row": (layer_norm, (((1, 100003), F), ((100003,), F), ((100003,), F)), 5),
    "sum of everything": (lambda b, x: op.sum(x), (((1 << 18,), F),), 2),
    "sum to a scalar": (lambda b, x: op.sum(x), (((1000,), F),), 1),
    "largest position": (lambda b, x: op.argmax(x, axis=-1), (((64, 250), F),), 1),
    "mean over space": (lambda b, x: op.mean(x, axis=[1, 2]), (((2, 7, 7, 512), H),), 1),
    "mean of columns": (lambda b, x: op.mean(x, axis=[0]), (((3001, 96), F),), 2),
    "max pooling": (
        lambda b, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
        (((2, 28, 28, 64), H),),
        1,
    ),
    "average pooling, channels first": (
        lambda b, x: op.nn.avg_pool2d(x, (2, 2), strides=(2, 2)),
        (((1, 13, 28, 28), F),),
        1,
    ),
    "depthwise convolution": (depthwise, (((1, 28, 28, 96), H), ((3, 3, 96, 1), H)), 1),
    "product with a vector": (lambda b, x, w: op.matmul(x, w), (((1, 768), F), ((768, 320), F)), 2),
    "product": (dense, (((1, 64, 128), F), ((128, 192), F), ((192,), F)), 1),
    "product of odd sizes": (dense, (((67, 99), F), ((99, 101), F), ((101,), F)), 1),
    "product with a long sum": (dense, (((1, 64, 1024), B), ((1024, 64), B), ((64,), B)), 1),
    "product with few results of a very long sum": (dense, (((1, 16, 8192), H), ((8192, 32), H), ((32,), H)), 2),
    "product of half precision": (dense, (((1, 64, 128), H), ((128, 96), H), ((96,), H)), 1),
    "product of bfloat16, odd sizes": (dense, (((1, 97, 100), B), ((100, 71), B), ((71,), B)), 1),
    "convolution of half precision": (
        convolution("NHWC", "OHWI", 2),
        (((1, 14, 14, 64), H), ((64, 3, 3, 64), H), ((1, 1, 1, 64), H), ((1, 7, 7, 64), H)),
        1,
    ),
    "batched product": (lambda b, x, y: op.matmul(x, y), (((12, 40, 64), F), ((12, 64, 50), F)), 1),
    "convolution": (
        convolution("NHWC", "OHWI", 2),
        (((1, 14, 14, 256), F), ((32, 3, 3, 256), F), ((1, 1, 1, 32), F), ((1, 7, 7, 32), F)),
        2,
    ),
    "convolution, channels first": (
        convolution("NCHW", "OIHW", 2, 3),
        (((1, 3, 32, 32), F), ((32, 3, 7, 7), F), ((1, 32, 1, 1), F)),
        1,
    ),
    "product of a vector with few columns": (
        lambda b, x, w: op.matmul(x, w),
        (((1, 512), F), ((512, 3), F)),
        1,
    ),
    "largest of few columns of bfloat16": (lambda b, x: op.max(x, axis=[0]), (((300, 7), B),), 1),
    "embedding": (lambda b, i, t: op.take(t, i, axis=0, mode="clip"), (((3, 40), "int64"), ((10, 96), H)), 1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_default_computes_what_the_workload_computes(name: str) -> None:
    make, specs, kernels = CASES[name]
    made = functions(make, *specs)
    launched = sum(len(check(mod, HOPPER).lowered.calls) for mod in made)
    assert launched - len(made) + 1 == kernels


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["product of half precision", "product of bfloat16, odd sizes", "convolution of half precision"]
)
def test_products_of_half_precision_use_tensor_cores_and_sum_in_single_precision(name: str) -> None:
    make, specs, _ = CASES[name]
    (mod,) = functions(make, *specs)
    assert re.search(r"wmma_sync_16x16x16_(f16f16|bf16bf16)f32", trace_of(mod, HOPPER))


@pytest.mark.filterwarnings("ignore")
def test_steps_of_products_are_copied_asynchronously_and_long_sums_are_divided_among_warps() -> None:
    (mod,) = functions(dense, ((1, 64, 1024), H), ((1024, 64), H), ((64,), H))
    source = lower(apply_trace(mod, trace_of(mod, HOPPER)).mod, to_tvm_target(HOPPER)).source
    assert "cp_async" in source
    tile = best_tile(Product(s=1, i=64, j=64, k=1024, run=1024), Limits.of(HOPPER), tensor_cores=True)
    assert tile.warps[2] > 1
    assert tile.parts == 1


def test_two_kernels_divide_a_sum_only_where_they_are_estimated_to_be_much_faster() -> None:
    limits = Limits.of(HOPPER)
    for i, j, k in ((16, 32, 8192), (128, 768, 3072), (49, 512, 4608), (1024, 1024, 1024)):
        product = Product(s=1, i=i, j=j, k=k, run=k)
        tile = best_tile(product, limits, tensor_cores=True)
        assert tile.shared_bytes <= limits.shared_bytes
        assert tile.threads <= limits.threads
        whole = replace(tile, parts=1)
        assert tile.parts == 1 or MUCH * cycles(product, tile, limits) < cycles(product, whole, limits)


def half_softmax(x: Any) -> list[Any]:
    return [topi.cast(topi.nn.softmax(topi.cast(x, F)), x.dtype)]


def residual_norm(x: Any, r: Any, g: Any, s: Any) -> list[Any]:
    return [topi.nn.layer_norm(topi.add(x, r), g, s, [1])]


def residual_norm_with_sum(x: Any, r: Any, g: Any, s: Any) -> list[Any]:
    """The sum is a result as well: the next layer's residual."""
    y = topi.add(x, r)
    return [y, topi.nn.layer_norm(y, g, s, [1])]


FUSED: dict[str, tuple[Callable[..., Any], tuple[Spec, ...], int]] = {
    "softmax between conversions": (half_softmax, (((37, 512), H),), 1),
    "softmax of 197 between conversions": (half_softmax, (((48, 197), B),), 1),
    "residual and norm": (residual_norm, (((33, 768), H), ((33, 768), H), ((768,), H), ((768,), H)), 1),
    "residual and norm, and their sum": (
        residual_norm_with_sum,
        (((33, 768), H), ((33, 768), H), ((768,), H), ((768,), H)),
        1,
    ),
    "residuals and norm of short rows": (
        lambda x, r, e, g, s: residual_norm(topi.add(x, r), e, g, s),
        (((128, 128), H), ((128, 128), H), ((128, 128), H), ((128,), H), ((128,), H)),
        1,
    ),
    "mean of few numbers": (lambda x: [topi.divide(topi.sum(x), 65.0)], (((5, 13), F),), 1),
    "mean of many numbers": (lambda x: [topi.divide(topi.sum(x), 1e5)], (((400, 250), F),), 2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUSED)
def test_a_chain_with_what_is_fused_into_it_is_one_kernel(name: str) -> None:
    make, specs, kernels = FUSED[name]
    mod = one_function(make, *specs)
    assert len(check(mod, HOPPER).lowered.calls) == kernels


ATTENTIONS = {
    # name: (attention, kernels, whether tensor cores are used)
    "half precision": (lambda: attention(1, 2, 64, 64, 32), 1, True),
    "bfloat16, keys that no tile divides": (lambda: attention(1, 2, 64, 200, 64, dtype=B), 1, True),
    "batches of heads, with a mask": (lambda: attention(2, 3, 33, 47, 24, mask=True), 1, True),
    "rows that no tile divides": (lambda: attention(1, 2, 49, 49, 32, mask=True), 1, True),
    "only keys before": (lambda: attention(1, 2, 35, 35, 80, dtype=B, causal=True), 1, True),
    "few rows and keys of many batches": (lambda: attention(30, 3, 4, 4, 64), 1, True),
    "few keys": (lambda: attention(1, 2, 70, 9, 32, mask=True), 1, True),
    "few keys before": (lambda: attention(2, 2, 25, 25, 24, dtype=B, causal=True), 1, True),
    "two rows and keys": (lambda: attention(3, 5, 2, 2, 16), 1, True),
    "one row and few keys": (lambda: attention(1, 3, 1, 7, 32), 3, False),
    "keys that do not fit into shared memory": (lambda: attention(1, 1, 16, 2048, 32), 3, True),
    "single precision with a mask": (lambda: attention(2, 1, 33, 47, 24, dtype=F, mask=True), 3, False),
    "one row": (lambda: attention(1, 2, 1, 64, 32), 3, False),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_one_kernel_where_tensor_cores_compute_it_and_a_block_has_room_for_its_scores(name: str) -> None:
    make, kernels, tensor_cores = ATTENTIONS[name]
    mod = load_ir(make().ir)
    default = check(mod, HOPPER)
    assert len(default.lowered.calls) == kernels
    assert ("wmma_sync" in default.trace) is tensor_cores


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    heads=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    rows=st.integers(16, 70),
    keys=st.integers(2, 260),
    size=st.integers(16, 72),
    dtype=st.sampled_from([H, B]),
    masks=st.tuples(st.booleans(), st.booleans()),
)
def test_an_attention_of_any_shape_is_one_kernel_and_right(
    heads: tuple[int, int], rows: int, keys: int, size: int, dtype: str, masks: tuple[bool, bool]
) -> None:
    mod = load_ir(attention(*heads, rows, keys, size, dtype=dtype, mask=masks[0], causal=masks[1]).ir)
    assert len(check(mod, HOPPER).lowered.calls) == 1


def sizes(most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([1, 2, 31, 32, 33, 64, 127, 197, 256, 1000]), st.integers(1, most)).filter(
        lambda n: n <= most
    )


OPERATORS: dict[str, Callable[..., Any]] = {
    "relu": lambda b, x: op.nn.relu(x),
    "softmax": lambda b, x: op.nn.softmax(x),
    "softmax over the middle": lambda b, x: op.nn.softmax(x, axis=1),
    "sum of rows": lambda b, x: op.sum(x, axis=[2]),
    "sum of columns": lambda b, x: op.sum(x, axis=[0, 1]),
    "largest in the middle": lambda b, x: op.max(x, axis=[1]),
    "transpose": lambda b, x: op.permute_dims(x, [2, 0, 1]),
    "turn": lambda b, x: op.permute_dims(x, [0, 2, 1]),
    "variance": lambda b, x: op.variance(x, axis=[-1], keepdims=True),
}


def in_single(make: Callable[..., Any]) -> Callable[..., Any]:
    """The operator in single precision, between conversions, as half precision is summed."""
    return lambda b, x: op.astype(b.emit(make(b, b.emit(op.astype(x, F)))), str(x.ty.dtype))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    name=st.sampled_from(sorted(OPERATORS)),
    shape=st.tuples(sizes(9), sizes(64), sizes(300)),
    dtype=st.sampled_from([F, F, H, B, "int32"]),
)
def test_any_shape_and_type_is_right(name: str, shape: tuple[int, ...], dtype: str) -> None:
    sums = name in ("softmax", "softmax over the middle", "sum of rows", "sum of columns", "variance")
    for mod in functions(in_single(OPERATORS[name]) if sums else OPERATORS[name], (shape, dtype)):
        check(mod, TARGET)


def trace_of(mod: Any, target: Target) -> str:
    return default_trace(Workload(digest=workload_digest(mod), ir=save_ir(mod)), target)


def compilers() -> dict[str, DeviceCompiler]:
    try:
        return {arch: DeviceCompiler(arch) for arch in ("sm_80", "sm_90a", "sm_100a")}
    except NotCompiled:
        return {}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not compilers(), reason="needs NVRTC or nvcc")
def test_defaults_compile_for_each_architecture() -> None:
    names = [
        "product of half precision",
        "product of bfloat16, odd sizes",
        "convolution of half precision",
        "relu in single precision between conversions",
        "relu of rows that no block of threads divides",
        "transpose",
        "softmax of bfloat16",
        "layer norm of 1000",
        "max pooling",
        "depthwise convolution",
        "bytes",
    ]
    workloads = [mod for name in names for mod in functions(CASES[name][0], *CASES[name][1])]
    workloads += [
        load_ir(ATTENTIONS[name][0]().ir) for name in ("half precision", "bfloat16, keys that no tile divides")
    ]
    for mod in workloads:
        for arch, compiler in compilers().items():
            target = Target.parse({**HOPPER.attributes(), "arch": arch})
            scheduled = apply_trace(mod, trace_of(mod, target)).mod
            assert compiler.compile(lower(scheduled, to_tvm_target(target)).source)[:4] == b"\x7fELF"
