"""What is no number is treated as in PyTorch and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402
from pitchpipe.torch_operators.arrays import to_array  # noqa: E402
from tests.compiler.models import model, node  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_graph import expected, ingest_here, run  # noqa: E402
from tests.compiler.test_torch_operators import Of  # noqa: E402
from tuner.deploy.finish import finish  # noqa: E402
from tuner.graph.prepare import prepare  # noqa: E402
from tuner.lowering.fastmath import expand_intrinsics  # noqa: E402
from tuner.tvm_compat import load_ir  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]

NAN, INF = float("nan"), float("inf")
ROWS = [[NAN, 0, 1, -1, 0.2, INF, -INF, -0.2], [0, -0.0, 0, 0, 0, 0, 0, 0], [NAN, 0, 0, 0, 0, 0, 0, 0]]

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "any": lambda x: (x.any(1), x.any()),
    "all": lambda x: (x.all(1), x.all()),
    "bool": lambda x: x.bool(),
    "logic": lambda x: (torch.logical_not(x), torch.logical_and(x, x.flip(1)), torch.logical_xor(x, x.flip(1))),
    "unequal": lambda x: (x != 0, x != x.flip(1), x != x),
    "count": lambda x: torch.count_nonzero(x, 1),
    "softshrink": torch.nn.functional.softshrink,
    "times zero": lambda x: x * 0,
    "by zero": lambda x: (x / 0, x / -0.0),
    "sign": torch.sign,
    "most of booleans": lambda x: ((x > 0).float().amax(0), (x > 0).float().amin(1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_comparisons_and_what_is_made_of_them_are_pytorchs(dtype: str) -> None:
    module = Of(lambda x: [ask(x) for ask in QUESTIONS.values()], torch.tensor(ROWS).to(getattr(torch, dtype)))
    wanted = torch.utils._pytree.tree_leaves(module(*module.tensors))
    for found, one in zip(through_load(module.eval(), TARGET), map(to_array, wanted), strict=True):
        np.testing.assert_array_equal(found.astype(np.float64), one.astype(np.float64))


def test_the_sign_of_what_is_no_number_in_an_onnx_file_is_none() -> None:
    x = np.array(ROWS, np.float32)
    proto = model([node("Sign", ["x"], ["y"])], {"x": list(x.shape)}, ["y"], {})
    ingested, weights = ingest_here(proto)
    built = expand_intrinsics(finish(prepare(load_ir(ingested.ir), TARGET), TARGET))
    np.testing.assert_array_equal(run(built, ingested, weights, [x])[0], expected(proto, [x])[0])
