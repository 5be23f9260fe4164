"""Layers beyond those of the benchmark models: what PyTorch computes, they compute when prepared, and how."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidModel, UnsupportedOperator
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.task import TaskKind
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph.fold_constants import folded
from tuner.graph.prepare import call_counts, prepare
from tuner.ingest import DEFAULT_LIMITS
from tuner.ingest.relax_reader import read_relax
from tuner.tasks import split
from tuner.tvm_compat import load_ir, relax

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

nn, functional = torch.nn, torch.nn.functional


class Of(nn.Module):  # type: ignore[misc,name-defined]
    """A module of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def prepared(module: Any, inputs: tuple[Any, ...]) -> Any:
    data, weights = from_torch(module.eval(), inputs)
    ingested = read_relax(data, DEFAULT_LIMITS)  # without its child, which would cost more than the module
    return prepare(load_ir(ingested.ir), TARGET), ingested, weights


def check(module: Any, *inputs: Any) -> dict[str, int]:
    """The tensor functions of a module, once it computes what PyTorch does."""
    mod, ingested, weights = prepared(module, inputs)
    (found,) = run(finish(mod, TARGET), ingested, weights, [value.numpy() for value in inputs])
    with torch.no_grad():
        expected = module(*inputs).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(np.std(expected))))
    return call_counts(mod)


def operators(kernels: dict[str, int]) -> list[str]:
    return [re.sub(r"\d", "", name.removeprefix("fused_")) for name in kernels]


TRANSPOSED = {
    "stride as wide as the window": (2, {"kernel_size": 2, "stride": 2}),
    "stride and padding": (2, {"kernel_size": 4, "stride": 2, "padding": 1}),
    "stride and padding of two": (2, {"kernel_size": 4, "stride": 2, "padding": 2}),
    "stride of three": (2, {"kernel_size": (6, 3), "stride": 3, "padding": (2, 1), "output_padding": (1, 2)}),
    "output padding": (2, {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}),
    "dilation": (2, {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2}),
    "stride of one": (2, {"kernel_size": 3, "padding": 1}),
    "window smaller than the stride": (2, {"kernel_size": 2, "stride": 3}),
    "padding that cuts inputs off": (2, {"kernel_size": 1, "stride": 1, "padding": 1}),
    "groups": (2, {"kernel_size": 4, "stride": 2, "padding": 1, "groups": 4}),
    "uneven": (2, {"kernel_size": (3, 5), "stride": (1, 3), "padding": (0, 2)}),
    "one dimension": (1, {"kernel_size": 5, "stride": 3, "padding": 2}),
    "one dimension, as many taps for each output": (
        1,
        {"kernel_size": 8, "stride": 4, "padding": 2, "output_padding": 3},
    ),
    "one dimension, more cut off than a window": (1, {"kernel_size": 8, "stride": 2, "padding": 7}),
    "one dimension, half of the products with zeros": (1, {"kernel_size": 3, "stride": 2}),
}
PHASES = {
    "stride as wide as the window",
    "one dimension",
    "one dimension, as many taps for each output",
    "one dimension, more cut off than a window",
    "one dimension, half of the products with zeros",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", TRANSPOSED)
def test_a_transposed_convolution_is_the_sum_of_its_taps(kind: str) -> None:
    torch.manual_seed(0)
    dimensions, options = TRANSPOSED[kind]
    made = (nn.ConvTranspose1d, nn.ConvTranspose2d)[dimensions - 1](16, 32, **options)
    kernels = check(nn.Sequential(made, nn.ReLU()), torch.randn(2, 16, *(9, 7)[:dimensions]))
    (product,) = [name for name in kernels if "conv" in name]
    assert ("transpose" in product) is (kind not in PHASES)
    assert ("add_relu" in product) is (kind not in PHASES), "phases are moved to their places first"


@pytest.mark.parametrize("window", [2, (1, 2, 3), 3])
def test_transposed_convolutions_of_volumes_are_right(window: Any) -> None:
    """Those whose windows lie side by side are convolutions, whose results are moved."""
    torch.manual_seed(0)
    stride = 2 if window == 3 else window
    network = nn.Sequential(
        nn.Conv3d(3, 16, 1), nn.ReLU(), nn.ConvTranspose3d(16, 12, window, stride), nn.Conv3d(12, 4, 1)
    )
    kernels = check(network, torch.randn(2, 3, 3, 5, 4))
    assert any("transpose" in name and "conv" in name for name in kernels) is (window == 3)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_convolutions_of_all_ranks_have_their_channels_last(dimensions: int) -> None:
    torch.manual_seed(0)
    made = {1: nn.Conv1d, 3: nn.Conv3d}[dimensions]
    network = nn.Sequential(made(8, 16, 3, padding=1), nn.ReLU(), made(16, 32, 3, stride=2), nn.GELU())
    mod, *_ = prepared(network, (torch.randn(1, 8, *(9, 8, 10)[:dimensions]),))
    shapes = [
        [int(n) for n in function.params[-1].ty.shape]
        for variable, function in mod.functions.items()
        if "conv" in variable.name_hint
    ]
    assert [shape[-1] for shape in shapes] == [16, 32]
    check(network, torch.randn(1, 8, *(9, 8, 10)[:dimensions]))


@pytest.mark.parametrize(
    "function",
    [lambda x: torch.cumsum(x, 1), lambda x: torch.sort(x, -1).values * 2, lambda x: torch.topk(x, 3).values + 1],
    ids=["cumsum", "sort", "topk"],
)
def test_scans_and_sorts_have_implementations(function: Callable[..., Any]) -> None:
    check(Of(function), torch.randn(4, 9))


def attention_of(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **options)


TRUE_BELOW = torch.ones(6, 6, dtype=torch.bool).tril()
TRUE_BELOW[2] = False
ATTENTION = {
    "plain": attention_of(),
    "causal": attention_of(is_causal=True),
    "scaled": attention_of(scale=0.3),
    "mask, one row hidden": attention_of(attn_mask=TRUE_BELOW),
    "added mask, one row hidden": attention_of(attn_mask=torch.where(TRUE_BELOW, 0.5, -torch.inf)),
    "fewer keys than queries": lambda q, k, v: attention_of(enable_gqa=True)(q, k[:, :2], v[:, :2]),
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_passes_over_its_scores_once(kind: str) -> None:
    torch.manual_seed(0)
    kernels = check(Of(ATTENTION[kind]), *torch.randn(3, 2, 4, 6, 8).unbind())
    over_scores = [name for name in kernels if not any(part in name for part in ("einsum", "matmul"))]
    assert len(over_scores) <= (1 if kind in ("plain", "causal", "scaled") else 3)
    assert not any("equal" in name for name in kernels)


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """A block of a vision network whose dense layers are over channels, as ConvNeXt has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.window = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 64), nn.Linear(64, channels)
        self.scale = nn.Parameter(torch.rand(channels))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.window(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


def test_a_residual_stream_stays_as_the_dense_layers_have_it() -> None:
    torch.manual_seed(0)
    norms = [Of(lambda x: functional.layer_norm(x.permute(0, 2, 3, 1), (32,)).permute(0, 3, 1, 2)) for _ in range(2)]
    network = nn.Sequential(
        nn.Conv2d(3, 32, 2, 2), norms[0], Block(32), Block(32), norms[1], nn.Conv2d(32, 48, 2, 2), nn.ReLU()
    )
    kernels = check(network, torch.randn(1, 3, 16, 16))
    names = operators(kernels)
    assert sum("transpose" in name for name in names) == 1  # The output's, which is asked for with channels first.
    assert {"matmul_add_gelu", "matmul_add_multiply_add"} <= set(names)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_of_attention_runs_no_more_kernels_than_one(batch: int) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True)

    def attend(x: Any) -> Any:
        q, k, v = (functional.linear(x, w).reshape(batch, 12, 4, 8).transpose(1, 2) for w in WEIGHTS)
        read = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, 12, 32)
        return x + layer.linear2(functional.gelu(layer.linear1(layer.norm2(x + read))))

    WEIGHTS = torch.randn(3, 32, 32).unbind()
    names = operators(check(Of(attend), torch.randn(batch, 12, 32)))
    assert not any(name.startswith(("transpose", "reshape", "multiply", "gelu")) for name in names)


def test_a_layer_that_was_traced_around_torchs_own_kernel_is_taken() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    names = operators(check(layer, torch.randn(2, 12, 32)))
    assert not any(name.startswith("multiply") for name in names)


def test_masks_and_positions_that_are_constant_are_computed_when_the_model_is_prepared() -> None:
    def positions(x: Any) -> Any:
        at = torch.arange(x.shape[-1])
        joined = torch.cat([at[:1] - 1, at])
        group = (joined[1:] - joined[:-1] != 1).cumsum(0)
        seen = (group[:, None] == group[None, :]) & (at[:, None] >= at[None, :])
        shown = torch.where(seen, x, -torch.inf).softmax(-1)
        return torch.where((at >= 0)[:, None], shown, x) + group.max()

    names = check(Of(positions), torch.randn(6, 6))
    assert len(names) == 2
    assert not any(part in name for name in names for part in ("cumsum", "concat", "equal", "slice"))


def test_a_constant_index_out_of_bounds_is_not_folded() -> None:
    for index, expected in ((3, True), (-4, True), (4, False), (-5, False)):
        call = relax.op.index_tensor(relax.const(np.arange(4.0), "float32"), (relax.const([index], "int64"),))
        assert (folded(call, [1], "float32") is not None) is expected


def test_booleans_are_counted_in_whole_numbers() -> None:
    check(Of(lambda x: (x > 0).cumsum(1) * x), torch.randn(4, 9))


def test_a_norm_by_root_mean_square_is_two_kernels() -> None:
    weight = torch.rand(32)
    names = check(Of(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight), torch.randn(1, 5, 32))
    assert len(names) == 2


def test_inputs_that_are_views_of_one_tensor_are_of_static_shapes() -> None:
    check(Of(lambda x, y: x @ y), *torch.randn(2, 4, 4).unbind())


def test_rows_are_multiplied_by_the_matrix_of_their_group() -> None:
    torch.manual_seed(0)
    weight = torch.randint(-4, 5, (4, 16, 8)).bfloat16()
    rows = torch.randint(-4, 5, (12, 16)).float()
    module = Of(lambda x, ends: torch._grouped_mm(x.bfloat16(), weight, offs=ends).float())
    for ends in ([3, 3, 7, 12], [0, 0, 0, 12], [12, 12, 12, 12]):
        check(module, rows, torch.tensor(ends, dtype=torch.int32))


def test_an_operator_of_another_library_is_not_pytorchs_of_that_name() -> None:
    @torch.library.custom_op("pitchpipe_tests::relu", mutates_args=())  # type: ignore[untyped-decorator]
    def relu(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    relu.register_fake(torch.empty_like)
    with pytest.raises(UnsupportedOperator, match="pitchpipe_tests::relu"):
        from_torch(Of(torch.ops.pitchpipe_tests.relu).eval(), (torch.ones(2, 3),))


def test_a_number_read_out_of_constants_stands_in_the_program() -> None:
    def cut(x: Any) -> Any:
        positions = torch.arange(x.shape[0])
        return x[: positions.max().item()] * positions.sum().item()

    check(Of(cut), torch.randn(5, 3))


def test_polar_coordinates_turn_a_row() -> None:
    def turned(x: Any, angle: Any) -> Any:
        turn = torch.polar(torch.full_like(angle, 2.0), angle)
        return torch.view_as_real(torch.view_as_complex(x) * turn)

    check(Of(turned), torch.randn(3, 4, 2), torch.randn(3, 4))


def test_questions_about_constants_are_answered_where_a_module_is_exported() -> None:
    class Asks(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("stride", torch.tensor(2), persistent=False)

        def forward(self, x: Any) -> Any:
            mask = torch.ones_like(x[:, 0])
            written = torch.zeros(3)
            written[1:] = 5
            if bool((mask > 0).all()) and written.sum().item() == 10:
                x = x * 3
            return x[:, :: self.stride.item()]

    check(Asks(), torch.randn(4, 6))


@pytest.mark.parametrize(
    ("kind", "asked"),
    {
        "an input": lambda x: x,
        "a draw": lambda _: torch.rand(4),
        "what an input is written into": lambda x: _written(x, lambda kept: kept.__setitem__(2, x[0])),
        "what a view of is written into": lambda x: _written(x, lambda kept: kept[1:3].add_(x[0])),
        "what a view of an unknown place is written into": lambda x: _written(
            x, lambda kept: kept.scatter_(0, x.long(), 1)
        ),
        "a known shape filled with an input": lambda x: torch.full_like(x, x.sum()),
        "a new tensor filled with an input": lambda x: x.new_full((2,), x.sum()),
        "a constant as it was before an input was written into it": lambda x: _asked_for_its_shape(x),
        "a new tensor of an input": lambda x: x.new_tensor(x.sum()),
        "a question of an input": lambda x: torch.tensor([1.0, x.sum().item()]),
        "a statistic of an input": lambda x: _statistic(x),
    }.items(),
)
def test_questions_about_anything_else_are_not(kind: str, asked: Any) -> None:
    with pytest.raises(InvalidModel, match=r"data-dependent|GuardOnDataDependent"):
        from_torch(Of(lambda x: x * 2 if bool((asked(x) > 0.5).any()) else x * 3).eval(), (torch.ones(4),))


def test_what_torch_export_refuses_names_the_line_of_the_model() -> None:
    def asks(x: Any) -> Any:
        if not x.any():
            return x
        return x * 2

    with pytest.raises(
        InvalidModel, match=r"failed at `if not x\.any\(\):` \(test_torch_layers\.py, line \d+\): Could not"
    ):
        from_torch(Of(asks).eval(), (torch.ones(4),))


def _written(x: Any, write: Any) -> Any:
    """A view of a constant into which `write` wrote through another."""
    kept = torch.zeros(4)
    seen = kept[1:]
    write(kept)
    return seen


def _asked_for_its_shape(x: Any) -> Any:
    kept = torch.zeros(4)
    kept.add_(x)
    torch.ones_like(kept)
    return kept


def _statistic(x: Any) -> Any:
    mean = torch.zeros(1)
    nn.functional.batch_norm(x.reshape(4, 1), mean, torch.ones(1), training=True)
    return mean


@pytest.mark.parametrize(
    "order",
    [(0, 2, 1, 3), (0, 1, 2, 3), (2, 0, 1, 3)],
    ids=["images, rows, heads", "images, heads, rows", "rows, images, heads"],
)
def test_attention_lies_in_memory_as_its_query_does(order: tuple[int, ...]) -> None:
    """`order`: the axes of [images, heads, rows, size] in memory, from the outermost. What reads the result by its strides was
    traced with those of torch's kernel."""
    torch.manual_seed(0)

    def attend(x: Any) -> Any:
        q = (x * 2).permute(order).contiguous().permute([order.index(axis) for axis in range(4)])
        return functional.scaled_dot_product_attention(q, q, q).as_strided((2 * 7, 24), (24, 1))

    check(Of(attend), torch.randn(2, 3, 7, 8))


def test_windows_of_attention_meet_the_next_weights_in_one_product() -> None:
    torch.manual_seed(0)
    weights = torch.randn(24, 24)

    def attend(x: Any) -> Any:
        q = x.view(5, 7, 3, 8).transpose(1, 2)
        read = functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).contiguous()
        return functional.linear(read.reshape(5, 7, 24), weights)

    mod, _, _ = prepared(Of(attend), (torch.randn(5, 7, 24),))
    assert [5, 24, 24] not in [[int(extent) for extent in one.ty.shape] for one in mod["main"].params]
    check(Of(attend), torch.randn(5, 7, 24))


def test_overlapping_windows_of_a_transposed_tensor_are_read_by_their_places_in_memory() -> None:
    check(Of(lambda x: (x + 1).transpose(0, 1).as_strided((3, 4, 2), (4, 2, 1))), torch.randn(4, 6))
    check(Of(lambda x: (x + 1).transpose(0, 2).as_strided((3, 4, 2), (8, 1, 4), 2)), torch.randn(2, 3, 6))


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [
        ((3, -2), (1, 2)),
        ((1,), (-1,)),
        ((5,), ()),
        ((2, 3, 1), (1, 1, 3)),
        ((-100, 0), (0, 1)),
        ((3, -2, 4), (1, 2, 3)),
    ],
)
def test_rolling_moves_what_goes_over_an_end_to_the_other(shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    check(Of(lambda x: torch.roll(x, shifts, dims)), torch.randn(2, 7, 6, 8))


def test_windows_of_a_rolled_image_are_made_by_one_function_and_rolled_back_by_another() -> None:
    """Inlined, the indices of rolls go through divisions and other rolls, where TVM's own simplification is at fault."""

    def windows(x: Any, w: Any) -> Any:
        n, h, k, c = x.shape
        parts = torch.roll(x, (-3, -3), (1, 2)).view(n, h // 7, 7, k // 7, 7, c).permute(0, 1, 3, 2, 4, 5)
        parts = torch.relu(parts.reshape(-1, 49, c)) @ w
        whole = parts.view(n, h // 7, k // 7, 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, k, c)
        return torch.roll(whole, (3, 3), (1, 2)) + x

    kernels = check(Of(windows), torch.randn(1, 14, 21, 8), torch.randn(8, 8))
    assert [sum("roll" in name for name in kernels), len(kernels)] == [2, 3]
    assert check(Of(lambda x: torch.roll(torch.roll(x, 3, 1), -3, 1) * 2), torch.randn(2, 9, 8))


@pytest.mark.parametrize(("shape", "output"), [((2, 3, 7, 5), (3, None)), ((2, 3, 5), 7), ((2, 2, 4, 5, 6), 3)])
def test_an_adaptive_mean_over_windows_of_several_extents_is_a_task_like_any_other(shape: Any, output: Any) -> None:
    pools = (functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)
    module, x = Of(lambda x: pools[len(shape) - 3](x, output)), torch.randn(shape)
    check(module, x)
    (task,) = split(prepared(module, (x,))[0], TARGET)
    assert task.kind is TaskKind.FIXED
    assert task.fixed != BASELINE_TRACE


def test_a_divisor_that_is_a_number_is_part_of_the_function() -> None:
    """As an argument it would be drawn where the schedule is checked, and zero of it ends the process."""
    (task,) = split(prepared(Of(lambda x: x % 7), (torch.arange(32),))[0], TARGET)
    assert [one.shape for one in task.signature.arguments] == [(32,), (32,)]


def test_a_sort_has_no_schedule_but_the_baseline() -> None:
    tasks = split(prepared(Of(lambda x: x.topk(3)[0]), (torch.randn(4, 16),))[0], TARGET)
    assert [task.fixed for task in tasks if task.signature.operators == "sort"] == [BASELINE_TRACE]


def test_a_module_that_pretends_to_be_quantised_gives_what_pytorch_gives() -> None:
    class Pretends(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, scale: Any, zero: Any) -> Any:
            whole = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -16, 15)
            given = torch.fake_quantize_per_tensor_affine(x, scale[0], zero[0], -16, 15)
            fractions = torch.fake_quantize_per_channel_affine(x, scale, zero + 0.3, 1, -16, 15)
            channels = torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -16, 15)
            return torch.stack([whole, given, channels, fractions])

    scale, zero = torch.tensor([0.05, 0.1, 0.2]), torch.tensor([0, 1, -2], dtype=torch.int32)
    check(Pretends(), torch.randn(4, 3, 5), scale, zero)


def test_complex_tensors_of_one_number_are_made() -> None:
    class Padded(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            z = torch.fft.rfft(x)
            ends = [torch.zeros(2, 3, dtype=z.dtype), torch.full((2, 2), 1 + 2j), torch.ones_like(z)]
            return torch.view_as_real(torch.cat([z, *ends], 1))

    check(Padded(), torch.randn(2, 8))
