"""Sorts and ties, roundings of half precision, and operators of whole numbers: they give what PyTorch gives."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import calls, database, exported, name_of, outside, through_load  # noqa: E402
from pitchpipe.errors import UnsupportedOperator, UnsupportedShape  # noqa: E402
from pitchpipe.model.comparison import difference  # noqa: E402
from pitchpipe.model.reference import torch_runner  # noqa: E402
from pitchpipe.model.reference.torch_runner import TorchRunner  # noqa: E402
from pitchpipe.target_kind import kind_of  # noqa: E402
from pitchpipe.torch_operators.arrays import to_array  # noqa: E402
from pitchpipe.torch_operators.ties import TiesByPlace  # noqa: E402
from tests.compiler.programs import TARGET, UNOPTIMISED, workloads_of  # noqa: E402
from tests.compiler.test_torch_operators import Of  # noqa: E402
from tuner.deploy.forks import in_forks  # noqa: E402
from tuner.ingest import parse_container  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.measure.build import apply, compile_module  # noqa: E402
from tuner.tvm_compat import load_ir, tensor_in, tvm  # noqa: E402

functional = torch.nn.functional
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]

NAN, INF = float("nan"), float("inf")
UNUSUAL = (1.0, NAN, 0.0, -0.0, INF, -INF, 1.0, -2.0, NAN, 0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0, -0.0)
TIED = (3, 0, 1, 3, 2, 0, 1, 1, 0, 7, 100, 1)


def gives(module: Of) -> list[tuple[Any, Any]]:
    """Pairs of an output of ours and PyTorch's."""
    results = torch.utils._pytree.tree_leaves(module(*module.tensors))
    return list(zip(through_load(module.eval(), TARGET), map(to_array, results), strict=True))


def equal(a: Any, r: Any) -> bool:
    """With the signs of zeros, whatever bits stand for no number."""
    if a.dtype != r.dtype:
        return False
    wide = [one.astype(np.float64) for one in (a, r)]
    signs = [np.signbit(one) | np.isnan(one) for one in wide]
    return np.array_equal(*wide, equal_nan=True) and np.array_equal(*signs)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "bool"])
def test_a_stable_sort_keeps_ties_in_order_and_puts_what_is_no_number_last(dtype: str) -> None:
    kind = getattr(torch, dtype)
    row = torch.tensor(UNUSUAL if kind.is_floating_point else TIED).to(kind)
    x = torch.stack([row, row.flip(0), row.roll(3)])

    def sorts(x: Any) -> list[Any]:
        ways = [(1, False), (1, True), (0, True)]
        found = [each for dim, down in ways for each in torch.sort(x, dim=dim, descending=down, stable=True)]
        return found if dtype == "bool" else [*found, *torch.median(x, 1), *torch.nanmedian(x, 1)]

    assert [at for at, pair in enumerate(gives(Of(sorts, x))) if not equal(*pair)] == []


def places_of_ties(x: Any) -> Any:
    return (
        *(x.topk(5, 1), x.topk(7, 1, False, False), x.argsort(1), x.sort(0, descending=True), x.kthvalue(9, 1)),
        *(x.mode(1), (x > 1).sort(1)),
    )


def test_a_model_that_gives_places_of_ties_agrees_with_pytorch_by_their_order() -> None:
    x = torch.randint(0, 4, (5, 40), generator=torch.Generator().manual_seed(1))
    module = Of(places_of_ties, x)
    assert difference(through_load(module.eval(), TARGET), TorchRunner(module, module.tensors)([x.numpy()])) is None


def test_breaking_ties_changes_no_value_and_nothing_else() -> None:
    x = torch.randint(0, 4, (5, 40), generator=torch.Generator().manual_seed(1))
    plain = places_of_ties(x)
    with TiesByPlace():
        found = places_of_ties(x)
        assert torch.equal(torch.exp(x), x.exp())
    assert any(not torch.equal(a[1], r[1]) for a, r in zip(found, plain, strict=True) if isinstance(a, tuple))
    for one, other in zip(found, plain, strict=True):
        values = [each[0] if isinstance(each, tuple) else x.gather(1, each) for each in (one, other)]
        if values[0].ndim == 2 and values[0].shape[1] == 7:  # not asked to be sorted
            values = [each.sort(1)[0] for each in values]
        assert torch.equal(*values)


def generator() -> Any:
    return torch.Generator().manual_seed(0)


IMAGE, GRID = torch.randn(1, 2, 17, 19, generator=generator()), torch.rand(1, 5, 6, 2, generator=generator()) * 3 - 1.5
FIBONACCI = (4660046610375530309, 7540113804746346429)


def samples(mode: str) -> Any:
    return lambda x, grid: [
        functional.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align)
        for padding in ("zeros", "reflection")
        for align in (False, True)
    ]


def beside_forbidden_pages(array: Any) -> Any:
    """A tensor with the bytes of an array of whole pages, behind which a read ends the process."""
    memory = mmap.mmap(-1, array.nbytes + (1 << 20))
    found = np.frombuffer(memory, np.uint8)
    behind = ctypes.c_void_p(found.ctypes.data + array.nbytes)
    assert array.nbytes % mmap.PAGESIZE == 0
    assert ctypes.CDLL(None).mprotect(behind, ctypes.c_size_t(1 << 20), 0) == 0
    found[: array.nbytes] = array.reshape(-1).view(np.uint8)
    return tensor_in(found[: array.nbytes], array.shape, str(array.dtype))


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_a_sample_reads_nothing_beyond_the_image(padding: str) -> None:
    x, grid = torch.randn(1, 8, 16, 16, generator=generator()), GRID * 2
    grid[0, 0, 0, 0], grid[0, 0, 1, 1] = NAN, INF
    module = Of(lambda x, grid: functional.grid_sample(x, grid, padding_mode=padding), x, grid)
    ir = parse_container(from_torch(module.eval(), module.tensors)[0]).ir
    (sample,) = (w for w in workloads_of(ir, TARGET).values() if "floor" in str(load_ir(w.ir)))
    trace = kind_of(TARGET).default_trace(sample, TARGET)
    program = compile_module(apply(load_ir(sample.ir), trace), UNOPTIMISED).get_function("main", query_imports=True)

    def run(_: int) -> bytes:
        out = tvm.runtime.empty((1, 5, 6, 8), "float32")
        program(
            beside_forbidden_pages(np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())),
            tvm.runtime.tensor(grid.numpy()),
            out,
        )
        return out.numpy().tobytes()

    (found,) = in_forks(run, 1, processes=1, limit_secs=60)
    assert isinstance(found, bytes), found
    expected = module(x, grid).permute(0, 2, 3, 1).numpy()
    ours = np.frombuffer(found, np.float32).reshape(expected.shape)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def with_masks(x: Any, mask: Any, rows: Any, values: Any) -> Any:
    each, one, added, inner = x.clone(), x.clone(), x.clone(), x.clone()
    each[rows] = values
    one[rows] = values[0]
    added.index_put_((mask,), values[0, 0], accumulate=True)
    inner[:, mask[0]] = values[0, 1]
    return each, one, added, inner


def puts(x: Any, i: Any, j: Any, values: Any) -> Any:
    put = torch.ops.aten.index_put
    return (
        *(put(x, [i - 4], values[:, :, None], True), put(x, [i, None, j], values, True)),
        *(put(x, [None, j], values[:, 0, None], True), put(x, [i.view(2, 3), j.view(2, 3)], values[0, :3], True)),
        *(x.index_add(1, j, values[:4, :6, None].expand(4, 6, 3), alpha=2), x.index_fill(2, j[:1], 7.0)),
        *(x.index_copy(0, i[:1], values[None, 0, :, None].expand(1, 7, 3)),),
        *(x.index_reduce(0, i, values[:, :, None].expand(6, 7, 3), kind) for kind in ("prod", "mean", "amax", "amin")),
        *(
            x.scatter_reduce(
                0, i.view(6, 1, 1).expand(6, 7, 3), values[:, :, None].expand(6, 7, 3), kind, include_self=own
            )
            for kind in ("sum", "prod", "mean", "amax", "amin")
            for own in (False, True)
        ),
        functional.max_unpool1d(*functional.max_pool1d(x, 3, return_indices=True), 3),
        functional.max_unpool2d(*functional.max_pool2d(x, 3, return_indices=True), 3),
    )


RIGHT: dict[str, Of] = {
    "running extrema and sums of exponentials": Of(
        lambda x: (*x.cummax(-1), *x.cummin(0), x.logcumsumexp(1), x.logcumsumexp(0)),
        torch.tensor([[1.0, NAN, 3.0, -2.0], [INF, -INF, 2.0, 2.0], [-INF, -INF, 0.5, 90.0], [-90.0, 1.0, INF, INF]]),
    ),
    "what is put at places": Of(
        puts,
        torch.randint(-8, 8, (4, 7, 3), generator=generator()).float(),
        torch.tensor([3, 0, 3, 1, 0, 3]),
        torch.tensor([0, 2, 2, 1, 0, 2]),
        torch.randint(1, 3, (6, 7), generator=generator()).float(),
    ),
    "places of float16 are rounded": Of(samples("bilinear"), IMAGE.half(), GRID.half()),
    "places of bfloat16 are rounded": Of(samples("nearest"), IMAGE.bfloat16(), GRID.bfloat16()),
    "half precision overflows where PyTorch's does": Of(
        functional.soft_margin_loss, torch.tensor([20.0, 1.0]).half(), torch.tensor([-1.0, 1.0]).half()
    ),
    "angles of bfloat16": Of(torch.angle, torch.tensor([1.0, -1.0, 0.0, NAN]).bfloat16()),
    "logarithms near one": Of(
        lambda x: (torch.log1p(x) * 1e6, functional.softplus(x - 15) * 1e6), torch.tensor([3e-7, -3e-7, 1e-8])
    ),
    "what is no number": Of(
        lambda x, y: (
            *(torch.fmax(x, y), torch.fmin(x, y), *torch.cummax(x, 1), *torch.cummin(x, 1), x != x, x == x),
            *(torch.searchsorted(torch.arange(4.0), x), torch.bucketize(y, torch.arange(4.0), right=True)),
        ),
        torch.tensor([[1.0, NAN, 3.0, -2.0], [3.0, 3.0, 0.0, NAN]]),
        torch.tensor([[NAN, NAN, 1.0, 7.0], [2.0, NAN, NAN, 0.0]]),
    ),
    "a hash of 64 bits": Of(
        lambda x, n: (torch.hash_tensor(x, dim=1), torch.hash_tensor(n)),
        torch.linspace(-1, 2, 6).reshape(2, 3),
        torch.arange(-3, 5),
    ),
    "divisors": Of(
        lambda a, b: (torch.gcd(a, b), torch.lcm(a % 1000, b % 1000)),
        torch.tensor([0, 0, 5, -12, 7, FIBONACCI[0]]),
        torch.tensor([0, 9, 0, 18, -49, FIBONACCI[1]]),
    ),
    "convolutions of whole numbers": Of(
        lambda x, w: (
            functional.conv2d(x, w, stride=2, padding=1, dilation=2, groups=2),
            functional.conv_transpose2d(x, w, stride=2, output_padding=1),
        ),
        torch.arange(2 * 4 * 49).reshape(2, 4, 7, 7) % 11,
        torch.arange(4 * 2 * 9).reshape(4, 2, 3, 3) - 30,
    ),
    "masks that write": Of(
        with_masks,
        torch.arange(24.0).reshape(4, 6),
        torch.tensor([[True, False, True, False, False, False]] * 4),
        torch.tensor([False, True, False, True]),
        torch.randn(2, 6, generator=generator()),
    ),
    "another shape": Of(lambda x, y: x.clone().resize_as_(y), torch.arange(12).reshape(3, 4), torch.zeros(2, 5)),
    "everything dropped": Of(
        lambda x: functional.feature_alpha_dropout(x, 1.0, True) + functional.dropout(x, 1.0, True), torch.ones(2, 3, 4)
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", RIGHT)
def test_an_operator_gives_what_pytorch_gives(kind: str) -> None:
    found = gives(RIGHT[kind])
    assert difference([ours for ours, _ in found], [theirs for _, theirs in found]) is None


REFUSED: dict[str, tuple[Of, type[Exception], str]] = {
    "cubic sampling in bfloat16": (
        Of(samples("bicubic"), IMAGE.bfloat16(), GRID.bfloat16()),
        UnsupportedOperator,
        "grid_sampler_2d",
    ),
    "a mask among indices": (
        Of(lambda x, m: torch.index_put(x, (m, m.int()), x.new_tensor(1)), torch.ones(4, 3), torch.ones(4).bool()),
        UnsupportedOperator,
        "index_put",
    ),
    "parts of computed extents": (
        Of(lambda x, at: torch.tensor_split(x, at), torch.ones(4, 3), torch.tensor([1, 2])),
        UnsupportedShape,
        "depends on data",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_made_right_is_refused_by_name(kind: str) -> None:
    module, error, named = REFUSED[kind]
    with pytest.raises(error, match=named):
        from_torch(module.eval(), module.tensors)


@pytest.fixture(scope="module")
def operators() -> dict[str, Any]:
    return {name_of(operator): operator for operator in database()}


def test_memory_that_nobody_has_written_is_outside_whatever_it_holds(operators: dict[str, Any]) -> None:
    assert outside(calls(operators["empty_like"], "float16")[0])[0] == "memory that nobody has written"
    assert outside(calls(operators["zeros_like"], "float16")[0])[0] is None


@pytest.mark.long
@pytest.mark.parametrize("name", ["native_batch_norm", "tensor_split"])
def test_what_torch_export_says_decides_what_is_outside(operators: dict[str, Any], name: str) -> None:
    assert {one.kind for one in exported(calls(operators[name], "float32"), TARGET)} == {"outside"}


def test_places_in_what_is_not_sorted_are_those_of_pytorchs_steps() -> None:
    """Drawn inputs are not sorted."""

    class Places(torch.nn.Module):  # type: ignore[misc]
        tensors: tuple[Any, ...]

        def forward(self, rows: Any, x: Any) -> Any:
            return torch.searchsorted(rows, x), torch.searchsorted(rows, x, side="right"), torch.bucketize(x, rows[0])

    rows, x = torch.rand(3, 20), torch.rand(3, 7)
    rows[0, 9] = x[1, 2] = NAN
    module = Places().eval()
    module.tensors = (rows, x)
    for ours, theirs in zip(through_load(module, TARGET), module(rows, x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


class Switches(torch.nn.Module):  # type: ignore[misc]
    """Notes the precision that GPUs have for float32 while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def forward(self, x: Any) -> Any:
        backends = torch.backends
        self.seen += [at.fp32_precision for at in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)]
        return x


def test_the_framework_computes_float32_without_tf32_and_switches_are_put_back() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        asked = TorchRunner(Switches(), [torch.zeros(1)])
        asked(asked.examples)
        assert asked._module.seen == ["ieee"] * 3
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.rnn.fp32_precision == "tf32", "PyTorch's default"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


class Indexing(torch.nn.Module):  # type: ignore[misc]
    """Notes what it was run with."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table, self.how, self.seen = torch.nn.Embedding(4, 3), how, list[float]()

    def forward(self, x: Any, ids: Any) -> Any:
        found = self.table({"inputs": ids, "computed": (x * 3).long()}.get(self.how, torch.zeros(2, dtype=torch.long)))
        self.seen.append(float(x.max()))
        return found * x[:, None]


def test_every_operator_that_indexes_is_one_of_torchs() -> None:
    """In place or not: a name that no operator has would never be met."""
    names = {name.partition("::")[2].partition(".")[0].rstrip("_") for name in torch._C._dispatch_get_all_op_names()}
    assert names >= torch_runner.INDEXING


@pytest.mark.parametrize("how", ["inputs", "computed", "constants"])
def test_on_a_gpu_nothing_is_run_whose_computed_indices_are_out_of_range(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There that would end what the caller has on it; a CPU stands in for the GPU, and raises."""
    monkeypatch.setattr(torch_runner, "ASSERTING", {"cpu"})
    run = TorchRunner(Indexing(how), [torch.ones(2), torch.ones(2, dtype=torch.long)])
    run(run.examples)
    large = [run.examples[0] * 9, run.examples[1]]
    if how == "computed":
        with pytest.raises(IndexError):
            run(large)
        assert run._module.seen == [1.0]
        run([run.examples[0] * 0.5, run.examples[1]])
        assert run._module.seen == [1.0, 0.5]
    else:
        run(large)
        assert run._module.seen == [1.0, 9.0], "once, as it is"
    assert run._module.table.weight.requires_grad
