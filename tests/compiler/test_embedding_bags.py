"""Sums, means and maxima of bags of rows: of equally many indices each, and of bags that begin where data says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402  # needs torch
from pitchpipe.model.comparison import difference  # noqa: E402
from pitchpipe.torch_operators.arrays import to_array  # noqa: E402
from pitchpipe.wire.job import ModelFormat  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.tasks import split_ingested  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]
ROWS, BAGS, EACH = 50, 6, 4
EVEN = torch.randint(0, ROWS, (BAGS, EACH), generator=torch.Generator().manual_seed(0))
EVEN[1] = 3  # nothing is left of this bag where 3 is padding
OFFSETS = torch.tensor([0, 3, 3, 10, 20, 24])  # the second bag and the last are empty


TABLE = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1))
embedding_bag = torch.nn.functional.embedding_bag


class Bags(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Bags of rows of TABLE and the tensors to call it with: indices, then what `names` says."""

    def __init__(self, *tensors: Any, names: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__()
        self.table, self.tensors, self.names, self.options = torch.nn.Parameter(TABLE), tensors, names, options

    def forward(self, indices: Any, *others: Any) -> Any:
        return embedding_bag(indices, self.table, **dict(zip(self.names, others, strict=True)), **self.options)


def check(bags: Bags) -> None:
    found = through_load(bags.eval(), TARGET)
    assert difference([np.asarray(one) for one in found], [to_array(bags(*bags.tensors))]) is None


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_what_pytorch_makes_of_them(mode: str, padding: int | None) -> None:
    check(Bags(EVEN, mode=mode, padding_idx=padding))
    check(Bags(EVEN.flatten(), OFFSETS, names=("offsets",), mode=mode, padding_idx=padding))


@pytest.mark.parametrize("padding", [None, 3])
def test_indices_have_weights_of_their_own(padding: int | None) -> None:
    weights, names = torch.randn(BAGS, EACH), ("offsets", "per_sample_weights")
    check(Bags(EVEN, weights, names=names[1:], mode="sum", padding_idx=padding))
    check(Bags(EVEN.flatten(), OFFSETS, weights.flatten(), names=names, mode="sum", padding_idx=padding))


def test_a_bag_of_a_matrix_reads_its_own_indices_alone() -> None:
    """A bag that begins where data says is looked for among all indices: as many times the operations as there are bags."""

    def flops(bags: Bags) -> float:
        data, _ = from_torch(bags.eval(), bags.tensors)
        return sum(task.flops for task in split_ingested(data, ModelFormat.RELAX, [TARGET]))

    even, by_data = Bags(EVEN, mode="sum"), Bags(EVEN.flatten(), OFFSETS, names=("offsets",), mode="sum")
    assert flops(by_data) >= BAGS * flops(even) > 0
