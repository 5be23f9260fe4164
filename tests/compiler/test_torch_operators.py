"""Operators of torch's own database: exported, built and run, they give what PyTorch gives, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import (  # noqa: E402  # needs torch
    Call,
    calls,
    database,
    exported,
    judged,
    name_of,
    outside,
    through_load,
)
from pitchpipe.errors import UnsupportedOperator  # noqa: E402
from pitchpipe.model.comparison import difference  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tuner.ingest.torch_export import from_exported_program, from_torch  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]

ONCE_WRONG = (
    *("index_select", "select_scatter", "take", "nn.functional.softplus", "nn.functional.selu", "masked.mean"),
    *("nn.functional.avg_pool2d", "nn.functional.avg_pool3d", "native_layer_norm"),
    *("nn.functional.max_pool2d", "nn.functional.max_pool3d", "nn.functional.grid_sample", "lerp", "round.decimals_3"),
    *("nn.functional.interpolate.bicubic", "nn.functional.instance_norm", "nn.functional.upsample_bilinear"),
)
ONCE_REFUSED = (
    *("clamp_min", "clamp_max", "addmv", "fmin", "fmax", "cdist", "cummax", "unfold", "nn.functional.unfold"),
    *("nn.functional.adaptive_max_pool2d", "scatter_reduce.amax", "index_add", "searchsorted"),
    *("logcumsumexp", "nn.functional.pixel_shuffle", "mode", "median", "kthvalue", "nn.functional.pad.reflect"),
    *("remainder", "floor_divide", "masked_scatter", "as_strided", "diagonal_scatter", "cumsum", "split", "block_diag"),
)
WHOLE = ("add", "floor_divide", "pow", "sum", "sort", "where", "remainder")
HALF = ("softmax", "matmul", "sum", "native_layer_norm", "nn.functional.conv2d", "exp")


@pytest.fixture(scope="module")
def operators() -> dict[str, Any]:
    return {name_of(operator): operator for operator in database()}


def groups(names: Sequence[str], size: int = 8) -> Any:
    """Of operators whose calls are built side by side in one program: most of what a program costs is not its code."""
    return pytest.mark.parametrize("names", [names[at : at + size] for at in range(0, len(names), size)], ids=", ".join)


def check(operators: dict[str, Any], names: Sequence[str], dtype: str) -> None:
    """Where the program of all is not right, each call is a program of its own, and those that are wrong are told."""
    called = [(name, call) for name in names for call in calls(operators[name], dtype)]
    found = exported([call for _, call in called], TARGET)
    pairs = zip(called, found, strict=True)
    assert [(name, one) for (name, _), one in pairs if one.kind not in ("right", "outside")] == []


@pytest.mark.long
@groups([*ONCE_WRONG, *ONCE_REFUSED])
def test_an_operator_gives_what_pytorch_gives(operators: dict[str, Any], names: Sequence[str]) -> None:
    check(operators, names, "float32")


@pytest.mark.long
@groups(WHOLE)
def test_whole_numbers_are_promoted_as_in_pytorch(operators: dict[str, Any], names: Sequence[str]) -> None:
    check(operators, names, "int64")


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@groups(HALF)
def test_half_precision_is_summed_in_float32(operators: dict[str, Any], names: Sequence[str], dtype: str) -> None:
    check(operators, names, dtype)


class Of(nn.Module):  # type: ignore[misc,name-defined]
    """A module of a function and the tensors to call it with."""

    def __init__(self, function: Callable[..., Any], *tensors: Any) -> None:
        super().__init__()
        self.function, self.tensors = function, tensors

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def there_and_back(x: Any) -> Any:
    """Transforms of a whole and a half spectrum, some of whose frequencies are left out or not given, and their inverses."""
    extent = x.shape[-1]
    half, whole = torch.fft.rfft(x), torch.fft.fft(torch.complex(x, x.flip(-1)), norm="ortho")
    kept = torch.fft.irfft(half[:, : extent // 3], n=extent)
    others = torch.fft.irfft(half, n=extent - 1), torch.fft.ifft(whole, n=extent + 30).imag, torch.fft.hfft(half)
    return half.real, half.imag, whole.real, whole.imag, torch.fft.irfft(half, n=extent), kept, *others


def long_axes(x: Any) -> Any:
    """As a neural operator has it: a half spectrum of two axes, most of it left out."""
    found = torch.fft.rfft2(x, dim=(0, 2), norm="ortho")
    some = torch.zeros_like(found)
    some[:12, :, :12] = found[:12, :, :12] * (0.5 + 1j)
    return torch.fft.irfft2(some, s=(400, 384), dim=(0, 2), norm="ortho"), torch.fft.fft2(x, dim=(-1, 0)).real


X = torch.linspace(-2, 2, 24).reshape(4, 6)
RIGHT: dict[str, Of] = {
    "a result twice, an input and a constant": Of(lambda x: (x, x * 2, x, torch.ones(3)), X),
    "a result that is nothing": Of(lambda x: (x + 1, None), X),
    "scalars": Of(lambda x: (x * x + 1, torch.exp(x)), torch.tensor(1.5)),
    "nothing joined with something": Of(lambda x: torch.cat([x.new_zeros(0), x[:, :0], x], 1), X),
    "places from the end": Of(lambda x, i: (x[:, -1], x[i], x[:, i]), X, torch.tensor([-1, 0, 2])),
    "places among whole axes": Of(lambda x, i: x.reshape(2, 2, 3, 2)[:, i, :, i], X, torch.tensor([0, 1, -1])),
    "logarithms of whole numbers": Of(torch.log, torch.arange(1, 9)),
    "several types": Of(lambda x, n: (x + n, n / 2, n * 2.5, x > n), X, torch.arange(6)),
    "a Fourier transform": Of(lambda x: torch.fft.fftn(x, dim=(0, 1)).real, X),
    "angles of frequencies that are real": Of(lambda x: torch.fft.rfft(torch.cat([x, -x])).angle(), X),
    **{
        f"a Fourier transform of {extent}, and back": Of(
            there_and_back, torch.cos(torch.arange(3.0 * extent)).view(3, -1)
        )
        for extent in (96, 192, 198, 210, 399, 398, 401)
    },
    "a Fourier transform of one row": Of(
        lambda x: (torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.fft(x))), torch.cos(torch.arange(384.0))
    ),
    **{
        f"the real ends of half a Fourier transform of {extent}": Of(
            lambda x, n: torch.fft.irfft(torch.complex(x, x + n), n=2 * x.shape[-1] - 2),
            torch.linspace(-1, 1, extent // 2 + 1),
            torch.tensor([1e9] + [0.0] * (extent // 2 - 1) + [1e9]),
        )
        for extent in (10, 210, 384)
    },
    "a Fourier transform of long axes": Of(long_axes, torch.sin(torch.arange(400.0 * 2 * 384)).view(400, 2, 384)),
    "angles of a long transform's ends": Of(
        lambda x: torch.stack(
            [torch.fft.rfft(y.repeat(1, n // 6))[:, :: n // 2].angle() for y in (x, -x) for n in (198, 384)]
        ),
        X,
    ),
    "a slope that only training draws": Of(lambda x: functional.rrelu(x, 0.1, 0.4) * 2, X),
    "one number in half precision": Of(lambda x: x + torch.full_like(x.bfloat16(), 0.5).float(), X),
    "extrema and their places": Of(lambda x: (*x.max(1), *x.min(0), x.argmax()), X),
    "extrema without their places": Of(
        lambda x: (x.max(1)[0], x.min(0, keepdim=True)[0], (x > 0).max(-1)[0], (9 * x).long().min(1)[0]), X
    ),
    "extrema of half precision and of nothing, without places": Of(
        lambda x: (x.half().max(1)[0].float(), x.bfloat16().min(0)[0].float(), x[:0].max(1)[0].sum()), X
    ),
    "the extremum of a scalar": Of(lambda x: x.abs().sum().max(0)[0], X),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_program_gives_what_pytorch_gives(kind: str) -> None:
    module = RIGHT[kind].eval()
    results = [one for one in torch.utils._pytree.tree_leaves(module(*module.tensors)) if one is not None]
    assert difference(through_load(module, TARGET), [one.numpy() for one in results]) is None


class Counts(nn.Module):  # type: ignore[misc,name-defined]
    """Reads what it wrote in its last run, or only writes."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Any) -> Any:
        if self.reads:
            self.seen.add_(x.sum(0))
            return x + self.seen
        self.seen.copy_(x.sum(0))
        return x * 2


def writes_into_its_input(x: Any) -> Any:
    return x.add_(1)


REFUSED: dict[str, tuple[Any, str]] = {
    "dropout": (Of(lambda x: functional.dropout(x, 0.5, True)), "dropout"),
    "drawing": (Of(lambda x: x + torch.rand_like(x)), "rand_like"),
    "attention that drops": (
        Of(lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3)),
        "attention",
    ),
    "state": (Counts(True), "seen"),
    "written inputs": (Of(writes_into_its_input), "input"),
    "a number": (Of(lambda x: (x, 3)), "no tensor"),
    "complex results": (Of(lambda x: torch.fft.fft(x)), "complex"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_graph_cannot_hold_is_refused_by_name(kind: str) -> None:
    module, named = REFUSED[kind]
    with pytest.raises(UnsupportedOperator, match=named):
        from_torch(module.eval(), (X,))


def test_a_complex_input_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperator, match="complex64"):
        from_torch(Of(torch.abs).eval(), (torch.complex(X, X),))


def test_a_buffer_that_is_only_written_changes_no_result() -> None:
    module = Counts(False).eval()
    module.tensors = (X,)
    assert difference(through_load(module, TARGET), [(X * 2).numpy()]) is None


def test_dropout_of_nothing_and_at_inference_is_no_draw() -> None:
    from_torch(Of(lambda x: functional.dropout(functional.dropout(x, 0.0, True), 0.5, False)).eval(), (X,))


def test_a_draw_that_nothing_depends_on_is_left_out() -> None:
    """As models draw whether to leave a layer out, and leave none out in evaluation mode."""

    def drawing(x: Any) -> Any:
        torch.rand([]) + x.sum()
        return x * 2

    exported = torch.export.export(Of(drawing).eval(), (X,))
    assert any("rand" in str(node.target) for node in exported.graph.nodes)
    from_exported_program(exported)


def test_a_wrong_answer_is_told(operators: dict[str, Any]) -> None:
    call: Call = calls(operators["add"], "float32")[0]
    reason, expected = outside(call)
    assert reason is None
    assert judged(lambda: [one + 1 for one in expected], expected).kind == "wrong"


def test_draws_are_told_from_what_is_decided(operators: dict[str, Any]) -> None:
    assert outside(calls(operators["bernoulli"], "float32")[0])[0] == "random"
