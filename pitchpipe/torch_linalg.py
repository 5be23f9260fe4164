"""Factorisations and solutions of small square systems, written out column by column in ATen's operators. Needs torch.

With partial pivoting, as LAPACK does it; for matrices of at most LARGEST rows, since programs grow with them. Batches are
leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
LARGEST = 12
"""Rows."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator."""
    return {
        aten._linalg_check_errors.default: unchecked,
        aten.linalg_lu_factor_ex.default: lu_factor,
        aten._linalg_det.default: determinant,
        aten._linalg_slogdet.default: log_determinant,
        aten._linalg_solve_ex.default: solve,
        aten.linalg_inv_ex.default: inverse,
        aten.linalg_lu_solve.default: lu_solve,
        aten.linalg_cholesky_ex.default: cholesky,
        aten.cholesky.default: lambda x, upper=False: cholesky(x, upper=upper)[0],
        aten.linalg_solve_triangular.default: solve_triangular,
    }


def unchecked(info: Any, api_name: str, *, is_matrix: bool) -> None:
    """A singular matrix gives infinities here where PyTorch raises."""
    del info, api_name, is_matrix


def _fits(x: Any) -> bool:
    return x.dim() >= 2 and x.shape[-1] == x.shape[-2] <= LARGEST and x.dtype in (torch.float32, torch.float64)


def lu_factor(x: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """(L and U in one, pivots from 1, the first column without a pivot or 0)."""
    del check_errors
    if not _fits(x) or not pivot:
        return NotImplemented
    size = x.shape[-1]
    rows = torch.arange(size, device=x.device)
    pivots, info = [], torch.zeros(x.shape[:-2], dtype=torch.int32, device=x.device)
    for at in range(size):
        chosen = x[..., at:, at].abs().argmax(-1, keepdim=True) + at
        order = torch.where(rows == at, chosen, torch.where(rows == chosen, at, rows))
        x = x.gather(-2, order.unsqueeze(-1).expand(x.shape))
        diagonal = x[..., at, at].unsqueeze(-1)
        info = torch.where((info == 0) & (diagonal[..., 0] == 0), at + 1, info)
        below = torch.where((rows > at) & (diagonal != 0), x[..., :, at] / diagonal, 0.0)
        right = torch.where(rows > at, x[..., at, :], 0.0)
        left = ((rows > at).unsqueeze(-1) & (rows == at)) & (diagonal != 0).unsqueeze(-1)
        x = torch.where(left, below.unsqueeze(-1), x - below.unsqueeze(-1) * right.unsqueeze(-2))
        pivots.append(chosen + 1)
    return x, torch.cat(pivots, -1).to(torch.int32), info.to(torch.int32)


def _sign(pivots: Any) -> Any:
    """Of the permutation: each exchange of two different rows turns it."""
    places = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    return torch.where(pivots != places, -1.0, 1.0).prod(-1)


def determinant(x: Any) -> Any:
    factors = lu_factor(x)
    if factors is NotImplemented:
        return NotImplemented
    lu, pivots, _ = factors
    return lu.diagonal(0, -2, -1).prod(-1) * _sign(pivots).to(x.dtype), lu, pivots


def log_determinant(x: Any) -> Any:
    factors = lu_factor(x)
    if factors is NotImplemented:
        return NotImplemented
    lu, pivots, _ = factors
    diagonal = lu.diagonal(0, -2, -1)
    sign = diagonal.sign().prod(-1) * _sign(pivots).to(x.dtype)
    return sign, diagonal.abs().log().sum(-1), lu, pivots


def _substituted(triangle: Any, b: Any, upper: bool, unit: bool) -> Any:
    """x of triangle x = b, row after row."""
    size = triangle.shape[-1]
    found: list[Any] = [None] * size
    for at in reversed(range(size)) if upper else range(size):
        x = b[..., at : at + 1, :]
        found[at] = x if unit else x / triangle[..., at, at, None, None]
        b = b - triangle[..., :, at, None] * found[at]
    return torch.cat(found, -2)


def _permuted(b: Any, pivots: Any) -> Any:
    rows = torch.arange(pivots.shape[-1], device=b.device)
    for at in range(pivots.shape[-1]):
        other = (pivots[..., at : at + 1] - 1).to(torch.int64)
        order = torch.where(rows == at, other, torch.where(rows == other, at, rows))
        b = b.gather(-2, order.unsqueeze(-1).expand(b.shape))
    return b


def _lu_solved(lu: Any, pivots: Any, b: Any) -> Any:
    batch = torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu, pivots = lu.expand(*batch, *lu.shape[-2:]), pivots.expand(*batch, pivots.shape[-1])
    return _substituted(
        lu, _substituted(lu, _permuted(b.expand(*batch, *b.shape[-2:]), pivots), False, True), True, False
    )


def lu_solve(lu: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    if not _fits(lu) or not left or adjoint:
        return NotImplemented
    return _lu_solved(lu, pivots, b)


def solve(x: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    factors = lu_factor(x, check_errors=check_errors)
    if factors is NotImplemented or not left:
        return NotImplemented
    lu, pivots, info = factors
    vector = b.dim() == 1 or (b.dim() == x.dim() - 1 and b.shape == x.shape[:-1])
    found = _lu_solved(lu, pivots, b.unsqueeze(-1) if vector else b)
    return found.squeeze(-1) if vector else found, lu, pivots, info


def inverse(x: Any, *, check_errors: bool = False) -> Any:
    factors = lu_factor(x, check_errors=check_errors)
    if factors is NotImplemented:
        return NotImplemented
    lu, pivots, info = factors
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return _lu_solved(lu, pivots, identity), info


def cholesky(x: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """(The factor, the first column that shows that x is not positive or 0); only one triangle of x is read."""
    del check_errors
    if not _fits(x):
        return NotImplemented
    x = x.mT if upper else x
    rows = torch.arange(x.shape[-1], device=x.device)
    info = torch.zeros(x.shape[:-2], dtype=torch.int32, device=x.device)
    columns = []
    for at in range(x.shape[-1]):
        diagonal = x[..., at, at]
        info = torch.where((info == 0) & ~(diagonal > 0), at + 1, info)
        column = torch.where(rows >= at, x[..., :, at] / diagonal.sqrt().unsqueeze(-1), 0.0)
        columns.append(column.unsqueeze(-1))
        x = x - column.unsqueeze(-1) * column.unsqueeze(-2)
    factor = torch.cat(columns, -1)
    return factor.mT.contiguous() if upper else factor, info.to(torch.int32)


def solve_triangular(x: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not _fits(x):
        return NotImplemented
    if not left:
        return solve_triangular(x.mT, b.mT, upper=not upper, left=True, unitriangular=unitriangular).mT
    batch = torch.broadcast_shapes(x.shape[:-2], b.shape[:-2])
    x, b = x.expand(*batch, *x.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    return _substituted(x, b, upper, unitriangular)
