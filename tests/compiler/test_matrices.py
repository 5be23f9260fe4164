"""Factorisations of matrices give what PyTorch's library gives: values, pivots, signs, and where there is no factorisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import database, name_of, through_load  # noqa: E402  # needs torch
from pitchpipe.errors import UnsupportedOperator, UnsupportedShape  # noqa: E402
from pitchpipe.model.comparison import difference  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_torch_operators import check, groups  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.space.default import default_trace  # noqa: E402
from tuner.tasks import split_ingested  # noqa: E402

linalg = torch.linalg
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]

DATABASE = (
    *("geqrf", "linalg.householder_product", "ormqr", "linalg.lu_solve", "lu_unpack", "triangular_solve"),
    *("linalg.ldl_factor_ex", "linalg.ldl_solve", "linalg.cond", "linalg.matrix_rank.hermitian", "linalg.pinv"),
    *("linalg.pinv.hermitian", "linalg.pinv.singular", "norm.nuc", "linalg.slogdet"),
)
"""Operators of torch's database."""


class Of(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A module of a function and the tensors to call it with; several functions are modules side by side."""

    def __init__(self, *pairs: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
        super().__init__()
        self.pairs = pairs
        self.tensors = tuple(tensor for _, tensors in pairs for tensor in tensors)

    def forward(self, *tensors: Any) -> Any:
        rest, found = list(tensors), []
        for function, own in self.pairs:
            mine, rest = rest[: len(own)], rest[len(own) :]
            found += torch.utils._pytree.tree_leaves(function(*mine))
        return tuple(found)


def differs(module: Of) -> str | None:
    """How what is built of the module differs from what it gives in eager mode."""
    return difference(through_load(module.eval(), TARGET), [one.numpy() for one in module(*module.tensors)])


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def symmetric(*shape: int, seed: int = 0) -> Any:
    x = drawn(*shape, seed=seed)
    return x + x.mT


def positive(*shape: int) -> Any:
    x = drawn(*shape)
    return x @ x.mT + torch.eye(shape[-1])


@pytest.fixture(scope="module")
def operators() -> dict[str, Any]:
    return {name_of(operator): operator for operator in database()}


@pytest.mark.long
@groups(DATABASE, size=5)
def test_an_operator_of_torchs_database_gives_what_pytorch_gives(
    operators: dict[str, Any], names: Sequence[str]
) -> None:
    check(operators, names, "float32")


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 3, 5])
def test_eigenvectors_have_the_signs_that_pytorch_gives_them(rows: int) -> None:
    a = drawn(6, rows, rows, seed=rows)
    assert differs(Of(*((lambda x, uplo=uplo: linalg.eigh(x, uplo), (a,)) for uplo in "LU"))) is None


@pytest.mark.long
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (3, 3), (5, 4), (9, 6), (4, 5)])
def test_singular_vectors_have_the_signs_that_pytorch_gives_them(rows: int, columns: int) -> None:
    a = drawn(6, rows, columns, seed=rows + columns)
    assert (
        differs(Of(*((lambda x, full=full: linalg.svd(x, full_matrices=full), (a,)) for full in (False, True)))) is None
    )


LARGE: dict[str, Of] = {
    "LU": Of((linalg.lu, (drawn(2, 40, 30),)), (linalg.inv, (drawn(50, 50),)), (linalg.slogdet, (drawn(3, 20, 20),))),
    "a solution": Of(
        (linalg.solve, (drawn(30, 30), drawn(2, 30, 3))), (linalg.solve, (drawn(3, 30, 30), drawn(3, 30)))
    ),
    "a solution from the right": Of(
        (lambda a, b: linalg.solve(a, b, left=False), (drawn(4, 20, 20), drawn(4, 3, 20))),
        (lambda a, b: linalg.solve(a.mT, b, left=False), (drawn(20, 20), drawn(3, 20))),
    ),
    "Cholesky": Of(
        (linalg.cholesky, (positive(2, 30, 30),)),
        (lambda x: torch.cholesky_inverse(linalg.cholesky(x)), (positive(12, 12),)),
        (
            lambda b, x: torch.cholesky_solve(b, linalg.cholesky(x, upper=True), upper=True),
            (drawn(12, 2), positive(12, 12)),
        ),
    ),
    "QR": Of(*((lambda x, mode=mode: linalg.qr(x, mode), (drawn(30, 20),)) for mode in ("reduced", "complete"))),
    "R alone": Of((lambda x: linalg.qr(x, "r")[1], (drawn(20, 30),))),
    "eigenvalues": Of((linalg.eigvalsh, (drawn(60, 60),)), (lambda x: _rebuilt(linalg.eigh(x)), (symmetric(40, 40),))),
    "a low rank": Of((lambda x: _low_rank(x, 3), (drawn(2, 30, 50),)), (linalg.pinv, (drawn(40, 30),))),
    "float64": Of((linalg.svdvals, (drawn(12, 9).double(),)), (linalg.inv, (drawn(9, 9).double(),))),
    "an exponential": Of((linalg.matrix_exp, (drawn(3, 20, 20) * 2,))),
}


def _rebuilt(found: Any) -> Any:
    return found[1] * found[0] @ found[1].mT


def _low_rank(x: Any, rank: int) -> Any:
    u, s, vt = linalg.svd(x, full_matrices=False)
    return (u[..., :rank] * s[..., None, :rank]) @ vt[..., :rank, :]


@pytest.mark.long
@pytest.mark.parametrize("kind", LARGE)
def test_sizes_and_batches_of_any_kind_give_what_pytorch_gives(kind: str) -> None:
    assert differs(LARGE[kind]) is None


ZERO, ONE = torch.zeros(4, 4), torch.eye(4)
SINGULAR = torch.tensor([[1.0, 2.0, 4.0], [2.0, 4.0, 8.0], [1.0, 0.0, 1.0]])
EDGES: dict[str, Of] = {
    "no pivot": Of(
        *((function, (x,)) for function in (linalg.lu, linalg.lu_factor_ex, linalg.slogdet) for x in (ZERO, SINGULAR))
    ),
    "no inverse": Of((linalg.inv_ex, (SINGULAR,)), (linalg.inv_ex, (ZERO,))),
    "not positive": Of((linalg.cholesky_ex, (symmetric(6, 6),)), (linalg.cholesky_ex, (ZERO,))),
    "zeros": Of(*((function, (ZERO,)) for function in (linalg.qr, linalg.eigvalsh, linalg.svdvals, linalg.matrix_exp))),
    "ones on the diagonal": Of(*((function, (ONE,)) for function in (linalg.qr, linalg.eigh, linalg.svd, linalg.lu))),
    "zeros without blocks": Of((linalg.ldl_factor_ex, (ZERO,)), (linalg.ldl_factor_ex, (1 - ONE,))),
    "ranks": Of((linalg.matrix_rank, (SINGULAR,)), (linalg.matrix_rank, (ZERO,)), (linalg.pinv, (SINGULAR,))),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", EDGES)
def test_a_matrix_without_a_factorisation_gives_what_pytorch_gives(kind: str) -> None:
    assert differs(EDGES[kind]) is None


@pytest.mark.long
def test_numbers_that_are_none_come_to_an_end_and_stay_in_their_matrix() -> None:
    a = symmetric(2, 9, 9)
    kinds = (linalg.eigh, linalg.svd, linalg.matrix_exp, linalg.lu, linalg.qr, linalg.inv, linalg.ldl_factor)
    module = Of(*((function, (a,)) for function in kinds))
    right = through_load(module.eval(), TARGET)
    bad = a.clone()
    bad[1] = torch.nan
    module.tensors = tuple(bad for _ in module.tensors)
    found = through_load(module, TARGET)
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(found, right, strict=True))


def test_a_factorisation_is_a_task_with_a_default_schedule() -> None:
    module = Of((linalg.svd, (drawn(6, 5),)), (linalg.inv, (drawn(5, 5),)))
    data, _ = from_torch(module.eval(), module.tensors)
    tasks = split_ingested(data, split_format(), [TARGET])
    factorisations = [task for task in tasks if any(name in task.name for name in ("svd", "lu_factor", "lu_solve"))]
    assert len(factorisations) == 3
    for task in factorisations:
        assert task.kind.value == "fixed"
        assert task.fixed == default_trace(task.workload, TARGET)


def split_format() -> Any:
    from pitchpipe.wire.job import ModelFormat

    return ModelFormat.RELAX


def test_what_is_too_large_for_loops_on_one_core_is_refused_with_its_shape() -> None:
    with pytest.raises(UnsupportedShape, match=r"_linalg_svd.default .* of \[600, 600\] is too large"):
        from_torch(Of((linalg.svdvals, (torch.ones(600, 600),))).eval(), (torch.ones(600, 600),))


def test_exponentials_of_which_pytorch_makes_no_numbers_are_refused() -> None:
    x = torch.eye(3, dtype=torch.float16)
    with pytest.raises(UnsupportedOperator, match=r"linalg_matrix_exp.*half precision"):
        from_torch(Of((linalg.matrix_exp, (x,))).eval(), (x,))
