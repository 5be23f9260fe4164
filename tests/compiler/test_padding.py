"""Padding of batches between tuned sizes, with the module itself in place of builds."""

from __future__ import annotations

from typing import Any

import pytest

from pitchpipe.errors import InvalidInput

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pitchpipe.tuning.batches import batch_sizes, resized  # noqa: E402
from pitchpipe.tuning.modules import ModuleCalls  # noqa: E402
from pitchpipe.tuning.padding import Batch, PaddedBatches, padding  # noqa: E402


class Rows(nn.Module):
    """Of each row alone, or, with `mixed`, less the mean of all."""

    def __init__(self, mixed: bool = False) -> None:
        super().__init__()
        self.linear, self.mixed = nn.Linear(6, 4), mixed

    def forward(self, first: Any, *, second: Any) -> Any:
        found = self.linear(first) + second["more"]
        return {"found": found - found.mean(0) if self.mixed else found, "table": self.linear.weight * 2}


def calls(rows: int, mixed: bool = False) -> ModuleCalls:
    torch.manual_seed(0)
    return ModuleCalls(Rows(mixed).eval(), (torch.randn(rows, 6),), {"second": {"more": torch.randn(rows, 4)}})


class Itself:
    """A build that is the module."""

    is_current = True

    def __init__(self, made: ModuleCalls) -> None:
        self.made, self.rows = made, list[int]()

    def tensors(self, leaves: Any) -> Any:
        self.rows.append(leaves[0].shape[0])
        found = self.made.module(leaves[0], second={"more": leaves[1]})
        return [found["found"], found["table"]]


def test_a_batch_runs_on_the_next_larger_build_and_gives_its_own_rows() -> None:
    made = {rows: calls(rows) for rows in (2, 8)}
    builds = {rows: Itself(one) for rows, one in made.items()}
    proved = padding(made[8])
    assert proved is not None
    batches = [Batch(rows=n, calls=made[n], build=builds[n], secs=1.0, module_secs=4.0) for n in made]
    run = PaddedBatches(proved, batches)
    with torch.no_grad():
        for rows in (1, 2, 3, 8):
            first, more = torch.randn(rows, 6), torch.randn(rows, 4)
            found = run((first,), {"second": {"more": more}})
            torch.testing.assert_close(found, made[8].module(first, second={"more": more}))
        assert (builds[2].rows, builds[8].rows) == ([2, 2], [8, 8])
        assert run((torch.randn(9, 6),), {"second": {"more": torch.randn(9, 4)}}) is None
        assert run((torch.randn(0, 6),), {"second": {"more": torch.randn(0, 4)}}) is None
        assert run((torch.randn(3, 6),), {"second": {"more": torch.randn(9, 4)}}) is None
        assert run((torch.randn(3, 7),), {"second": {"more": torch.randn(3, 4)}}) is None


def test_rows_that_depend_on_each_other_are_not_padded() -> None:
    assert padding(calls(4, mixed=True)) is None


@pytest.mark.parametrize(("rows", "faster"), [(8, True), (5, True), (4, False), (2, True), (1, False)])
def test_padding_has_to_be_faster_whatever_the_module_takes_for_fewer_rows(rows: int, faster: bool) -> None:
    """Of 8 rows the module takes twice as long as the build, so of 5 at least 5/4 as long, of 4 perhaps no longer."""
    made = calls(8)
    batches = [
        Batch(rows=2, calls=made, build=Itself(made), secs=1.0, module_secs=1.5),
        Batch(rows=8, calls=made, build=Itself(made), secs=3.0, module_secs=6.0),
    ]
    at = 0 if rows <= 2 else 1
    assert PaddedBatches(None, batches).is_faster(at, rows) is faster


def test_powers_of_two_and_the_ends_are_tuned() -> None:
    assert batch_sizes((1, 8)) == [1, 2, 4, 8]
    assert batch_sizes(range(3, 13)) == [3, 4, 8, 12]
    for wrong in ((0, 4), (4, 2), range(0)):
        with pytest.raises(InvalidInput):
            batch_sizes(wrong)


def test_examples_of_another_size_have_the_rows_again() -> None:
    one = torch.arange(6.0).reshape(3, 2)
    (found, other), _ = resized((one, torch.ones(5)), {}, 5)
    torch.testing.assert_close(found, one[[0, 1, 2, 0, 1]])
    assert other.shape == (5,)
    with pytest.raises(InvalidInput):
        resized((torch.tensor(1.0),), {}, 2)
