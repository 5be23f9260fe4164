"""What torch.compile's backend decides by itself: which sizes need another paired benchmark, how long a program may wait."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch._aot_autograd.utils import make_boxed_func  # noqa: E402

from pitchpipe.model import comparison  # noqa: E402
from pitchpipe.torch_backend import paired_benchmark  # noqa: E402
from pitchpipe.torch_backend.beside import REPAID, Allowance, Task  # noqa: E402
from pitchpipe.torch_backend.chosen import Bucket  # noqa: E402
from pitchpipe.torch_backend.dynamic import Sizes  # noqa: E402
from pitchpipe.torch_backend.graph_text import Unknown, decode, encode  # noqa: E402
from pitchpipe.torch_backend.rehearsal import Rehearsal, Shared  # noqa: E402
from pitchpipe.torch_backend.report import BucketReport  # noqa: E402
from pitchpipe.torch_operators.decompositions import inference_decompositions  # noqa: E402


def verdict(ratio: float) -> paired_benchmark.Verdict:
    return paired_benchmark.Verdict(
        use=1 / ratio <= paired_benchmark.MARGIN, reason="a test says so", secs=1.0, eager_secs=ratio, ratio=ratio
    )


def a_bucket() -> Bucket:
    return Bucket({"s0": 64}, BucketReport(sizes={"s0": 64}))


def test_a_win_counts_for_more_rows_and_for_as_few_as_it_can_afford() -> None:
    found = a_bucket()
    assert found.answer(0.9) is None
    found.learn(0.9, verdict(1.25))
    assert found.answer(1.0) is True
    assert found.answer(0.9 / (1.25 * paired_benchmark.MARGIN) + 0.01) is True
    assert found.answer(0.6) is None, "so few rows may be too much padding: that is timed"
    found.learn(0.6, verdict(0.8))
    assert found.answer(0.6) is False
    assert found.answer(0.9) is True


def test_a_loss_counts_for_fewer_rows_and_for_as_many_as_would_lose_at_best() -> None:
    found = a_bucket()
    found.learn(0.6, verdict(0.8))
    assert found.answer(0.55) is False
    assert found.answer(0.7) is False, "at best PyTorch's time grows with the rows: 0.8 * 0.7 / 0.6 is less than 1"
    assert found.answer(1.0) is None
    found.learn(1.0, verdict(1.3))
    assert found.answer(1.0) is True


def test_a_wrong_result_ends_a_bucket() -> None:
    found = a_bucket()
    found.learn(0.6, verdict(2.0))
    found.never("result 0 is 0.5 off eager's")
    assert [found.answer(share) for share in (0.51, 0.7, 1.0)] == [False] * 3


def test_an_allowance_is_spent_once_and_repaid_slowly() -> None:
    now = [0.0]
    found = Allowance(lambda: now[0])
    assert found.left_secs(2.0) == 2.0
    found.spend(1.5)
    assert found.left_secs(2.0) == pytest.approx(0.5)
    now[0] += 1.0
    assert found.left_secs(2.0) == pytest.approx(0.5 + REPAID)
    now[0] += 100.0
    assert found.left_secs(2.0) == 2.0, "it does not add up"


def test_all_builds_together_are_waited_for_no_longer_than_the_deadline() -> None:
    now = [0.0]
    found = Allowance(lambda: now[0])
    asked: list[float] = []

    class Slow:
        done = False

        def wait(self, secs: float) -> bool:
            asked.append(secs)
            now[0] += secs
            return False

    for _ in range(3):
        assert not found.wait_for(Slow(), 2.0)  # type: ignore[arg-type]
        now[0] += 100.0
    assert asked == [2.0, 0.0, 0.0]


def test_work_beside_a_program_is_waited_for_no_longer_than_asked() -> None:
    gate = threading.Event()
    found = Task(lambda: gate.wait() and None, "test")
    assert not found.wait(0.0)
    gate.set()
    assert found.wait(60.0)
    assert not found.lost


def captured(function: Any, *inputs: Any) -> Any:
    found: list[Any] = []

    def keep(module: Any, _inputs: Any) -> Any:
        found.append(module)
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=aot_autograd(fw_compiler=keep, decompositions=inference_decompositions()))(
            *inputs
        )
    return found[0]


def test_a_graph_travels_as_text() -> None:
    def program(x: Any, w: Any) -> Any:
        y = torch.nn.functional.gelu(x @ w)
        low, high = y.to(torch.float64).split([3, 5], -1)
        return torch.cat([high, low], -1), torch.full_like(y, float("inf")), y.sum(-1, dtype=torch.float64)

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    module = captured(program, x, w)
    again = decode(encode(module))
    assert [node.name for node in again.graph.nodes] == [node.name for node in module.graph.nodes]
    assert encode(module) == encode(captured(program, x, w))
    for mine, other in zip(module.graph.nodes, again.graph.nodes, strict=True):
        if isinstance(mine.meta.get("val"), torch.Tensor):
            assert other.meta["val"].stride() == mine.meta["val"].stride()
            assert other.meta["val"].dtype == mine.meta["val"].dtype
    found, expected = again(x, w), module(x, w)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_a_child_does_not_have_arrives_under_its_name() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(captured, (x,))
    graph.output((y,))
    x.meta["val"] = y.meta["val"] = torch.empty(2)
    again = decode(encode(torch.fx.GraphModule({}, graph)))
    (found,) = [node for node in again.graph.nodes if node.op == "call_function"]
    assert isinstance(found.target, Unknown)
    assert "captured" in str(found.target)
    assert [one.name for one in found.all_input_nodes] == ["x"]


def test_a_graph_is_fixed_to_sizes_under_the_names_of_its_nodes() -> None:
    x = torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    module = captured(lambda x: (x.reshape(-1, 2).relu().reshape(x.shape[0], 8), x * x.shape[0]), x)
    sizes = Sizes(module)
    ((name, _),) = sizes.places.items()
    fixed = sizes.fixed({name: 7})
    names = {node.name for node in module.graph.nodes}
    assert all(node.name in names for node in fixed.graph.nodes)
    given = torch.randn(7, 8)
    found = fixed(
        *(7 if isinstance(node.meta["val"], int) else given for node in fixed.graph.find_nodes(op="placeholder"))
    )
    assert torch.equal(found[0], given.relu())
    assert torch.equal(found[1], given * 7)
    decode(encode(fixed))


def test_a_contest_goes_on_in_pieces() -> None:
    runs: list[str] = []

    def side(name: str) -> Any:
        def run() -> paired_benchmark.Outcome:
            runs.append(name)
            return paired_benchmark.Outcome(tensors=[torch.ones(3)])

        return run

    found, pieces, answer = paired_benchmark.PairedBenchmark(), 0, None
    while answer is None:
        answer, pieces = found.go_on(side("a"), side("b"), until=float("-inf")), pieces + 1
    assert pieces == 1 + 2 * paired_benchmark.MOST_ROUNDS
    assert answer.ratio is not None
    once = paired_benchmark.PairedBenchmark().go_on(side("a"), side("b"))
    assert once is not None
    assert once.secs is not None


def test_tolerances_are_those_of_every_check() -> None:
    for name, limit in comparison.TOLERANCE.items():
        if name == "tf32":
            continue
        r = torch.ones(1000, dtype=getattr(torch, name))
        for share, computed, right in ((1.5, None, True), (2.6, None, False), (2.6, "bfloat16", name != "bfloat16")):
            other = (r.double() + share * limit).to(r.dtype)
            found = paired_benchmark.difference([other], [r], computed=computed) is None
            assert found is right, (name, share, computed)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_infinities_and_missing_numbers_must_be_where_eagers_are(kind: Any) -> None:
    r = torch.tensor([1.0, float("inf"), float("-inf"), float("nan")]).to(kind)
    assert paired_benchmark.difference([r.clone()], [r]) is None
    for at, value in ((0, float("nan")), (1, float("-inf")), (2, 1.0), (3, float("inf"))):
        other = r.clone()
        other[at] = value
        assert paired_benchmark.difference([other], [r]) is not None, (at, value)


def test_a_rehearsal_leaves_nothing_and_tells_what_was_written() -> None:
    def program(x: Any, state: Any) -> Any:
        state.add_(1)
        return (x * state + torch.rand_like(x), x)

    x, state = torch.randn(3), torch.zeros(3)
    before = torch.random.get_rng_state()
    with torch.random.fork_rng():
        rehearsal = Rehearsal([x, state], {1}, stepping=False)
        first, second = rehearsal(program), rehearsal(program)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(state, torch.zeros(3))
    assert torch.equal(first.tensors[2], torch.ones(3)), "the state after the run is an outcome"
    assert paired_benchmark.difference(first.tensors, second.tensors) is None, "each run has the same random numbers"
    assert "in the memory of argument 0" in first.facts[1]
    assert "of result" not in "".join(first.facts)
    assert "in the memory of result 0" in rehearsal(lambda x, _: (y := x * 2, y.t())).facts[1]
    with pytest.raises(Shared):
        Rehearsal([state[1:], state], {1}, stepping=False)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (x * 2).t().contiguous().t(),
        lambda x: (x * 2).requires_grad_(),
        lambda x: x.mul_(2),
    ],
    ids=["strides", "gradient", "memory"],
)
def test_results_must_be_as_eagers_in_strides_gradient_and_memory(other: Any) -> None:
    rehearsal = Rehearsal([torch.randn(3, 4)], {0}, stepping=False)
    with torch.random.fork_rng():
        wrong = paired_benchmark.compared(
            lambda: rehearsal(lambda x: (other(x),)), lambda: rehearsal(lambda x: (x * 2,))
        )
    assert wrong is not None


def recaptured(function: Any, *calls: tuple[Any, ...]) -> Any:
    """What Dynamo captures last, once arguments have varied."""
    found: list[Any] = []

    def keep(module: Any, _inputs: Any) -> Any:
        found.append(module)
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=aot_autograd(fw_compiler=keep))
    with torch.no_grad():
        for call in calls:
            compiled(*call)
    return found[-1]


def test_a_stride_that_varied_is_not_padded() -> None:
    """Images that were given with channels last and then with channels first: the stride is a number of its own."""
    x = torch.randn(1, 3, 8, 8)
    sizes = Sizes(recaptured(lambda x: x * 2, (x.to(memory_format=torch.channels_last),), (x,)))
    assert len(sizes.places) == 1
    assert sizes.padded == frozenset()


def test_what_has_no_size_that_varies_is_passed_on_as_it_is() -> None:
    w = torch.randn(4, 4)
    graph = recaptured(lambda x, w: ((x @ w).relu(), w * 2), (torch.randn(5, 4), w), (torch.randn(6, 4), w))
    sizes = Sizes(graph)
    (name,) = sizes.padded
    given = [
        6 if isinstance(node.meta["val"], torch.SymInt) else w for node in graph.graph.find_nodes(op="placeholder")
    ]
    at = next(at for at, node in enumerate(graph.graph.find_nodes(op="placeholder")) if _varies(node.meta["val"], 2))
    given[at] = torch.randn(6, 4)
    seen: list[Any] = []

    def compiled(*arguments: Any) -> list[Any]:
        seen.extend(arguments)
        return [torch.ones(8, 4), w]

    cut, whole = sizes.run(compiled, given, {name: 6})
    assert (cut.shape, whole is w) == ((6, 4), True)
    assert seen[at].shape == (8, 4)
    assert torch.equal(seen[at][:6], given[at])
    assert sum(one is w for one in seen) == 1
    assert [one for one in seen if isinstance(one, int)] == [8] * (len(given) - 2)


def _varies(value: Any, dims: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == dims and isinstance(value.shape[0], torch.SymInt)
