"""How an ATen graph is cut into what is compiled and what stays with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402  # needs torch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from pitchpipe.torch_backend.constants import write_out  # noqa: E402
from pitchpipe.torch_backend.graph_text import decode, encode  # noqa: E402
from pitchpipe.torch_backend.index_bounds import bounds, can_be_checked, is_proved  # noqa: E402
from pitchpipe.torch_backend.index_intervals import interval  # noqa: E402
from pitchpipe.torch_backend.partition import fuse, split  # noqa: E402
from tuner.ingest import parse_container  # noqa: E402
from tuner.ingest.torch_fx import from_graph, unsupported  # noqa: E402
from tuner.tvm_compat import load_ir  # noqa: E402


def test_what_depends_on_weights_alone_stays_with_pytorch() -> None:
    """As the parameters of a state-space model before they become complex."""

    def program(x: Any, w: Any) -> Any:
        return x @ (w @ w).sin()

    captured = make_fx(program)(torch.ones(2, 3), torch.ones(3, 3))
    found = split(captured, {"w_1"}, lambda node: "it is a sine" if "sin" in str(node.target) else None)
    assert list(found.nodes.values()) == [("mm_1",)]
    assert found.left == {"it depends on weights alone": 1, "it is a sine": 1}


def test_a_graph_is_cut_while_another_thread_captures_a_program() -> None:
    """What a capture says about nodes is torch's global state."""

    def program(x: Any, w: Any) -> Any:
        y = x @ w
        return (y * 2).sin(), y.flip(0) @ w

    x, w = torch.randn(2, 3), torch.randn(3, 3)
    captured = make_fx(program)(x, w)
    with fx.traceback.preserve_node_meta(), fx.traceback.annotate({"of": "another program"}):
        found = split(captured, {"w_1"}, lambda node: "it is a flip" if "flip" in str(node.target) else None)
    assert len(found.nodes) == 2
    assert not any("custom" in node.meta for node in found.module.graph.nodes)
    for one, right in zip(found.module(x, w), program(x, w), strict=True):
        assert torch.equal(one, right)


def test_views_that_are_wanted_outside_are_made_outside() -> None:
    """There they share the memory of what they are views of, whatever inside reads them too."""

    def program(x: Any, w: Any) -> Any:
        y = x @ w
        left, right = y.split(2, 1)
        turned = left.t().unsqueeze(0)
        return y, turned, right, turned.exp() * right.exp().sum(), x.t(), x.t() @ x

    x, w = torch.randn(3, 4), torch.randn(4, 4)
    captured = make_fx(program)(x, w)
    found = split(captured, {"w_1"}, lambda _node: None)
    (inner,) = [found.module.get_submodule(name) for name in found.nodes]
    assert len(inner.graph.output_node().args[0]) == 3, "of what computes alone"
    results = found.module(x, w)
    for one, right in zip(results, program(x, w), strict=True):
        assert torch.equal(one, right)
        assert one.stride() == right.stride()
    results[0].zero_()
    assert not results[1].any()
    assert not results[2].any()
    assert results[4].data_ptr() == x.data_ptr()


def test_strides_of_axes_of_one_element_cut_nothing() -> None:
    """What torch.compile writes behind a global average pool of images with their channels last; other strides read memory,
    which a compiled program arranges as it likes."""

    def pooled(x: Any, w: Any) -> Any:
        mean = (x * 2).mean((2, 3), True)
        return mean.as_strided((2, 8, 1, 1), (8, 1, 8, 8)).flatten(1).relu() @ w

    def turned(x: Any, w: Any) -> Any:
        return (x * 2).as_strided((2, 8, 4, 4), (128, 1, 32, 8)).mean((2, 3)).relu() @ w

    images = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    w = torch.randn(8, 3)
    for program, x, whole in ((pooled, images, True), (turned, images.contiguous(), False)):
        found = split(make_fx(program)(x, w), {"w_1"}, unsupported)
        assert any("as_strided" in node.name for node in found.module.graph.nodes) != whole
        assert torch.equal(found.module(x, w), program(x, w))


def test_what_lies_the_same_is_no_gather() -> None:
    def program(x: Any, w: Any) -> Any:
        return (x * 2).mean((2, 3), True).as_strided((2, 8, 1, 1), (8, 1, 8, 8)).flatten(1) @ w

    images = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    captured = make_fx(program, tracing_mode="fake")(images, torch.randn(8, 3))
    assert "as_strided" not in str(load_ir(parse_container(from_graph(captured, {"w_1"})).ir))


def spectral(x: Any) -> Any:
    """A correlation by Fourier transforms between real operators."""
    y = torch.fft.rfft(x.exp())
    return torch.fft.irfft(y * y.conj() * 2, n=x.shape[-1]).relu() + x.sin()


def cut(program: Any, *arguments: Any) -> Any:
    """Its graph, cut."""
    captured = make_fx(program, tracing_mode="fake")(*arguments)
    return split(captured, set(), unsupported)


def test_complex_numbers_between_real_ones_are_compiled_with_them() -> None:
    x = torch.randn(4, 12)
    found = cut(spectral, x)
    assert not found.left
    (inner,) = [found.module.get_submodule(name) for name in found.nodes]
    assert any(node.meta["val"].is_complex() for node in inner.graph.nodes if node.op == "call_function")
    torch.testing.assert_close(found.module(x), spectral(x))
    assert load_ir(parse_container(from_graph(inner, set())).ir)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (torch.fft.rfft(x.exp()) * 2, spectral(x)),
        lambda x: (torch.fft.rfft(x.exp()).cumprod(-1).abs() + 1, spectral(x)),
    ],
    ids=["a result", "read by an operator that is not compiled"],
)
def test_complex_numbers_that_leave_stay_with_pytorch(program: Any) -> None:
    x = torch.randn(4, 12)
    found = cut(program, x)
    assert found.left
    (inner,) = [found.module.get_submodule(name) for name in found.nodes]
    ends = [*inner.graph.find_nodes(op="placeholder"), *inner.graph.output_node().all_input_nodes]
    assert not any(node.meta["val"].is_complex() for node in ends)
    for one, right in zip(found.module(x), program(x), strict=True):
        torch.testing.assert_close(one, right)


def test_complex_numbers_that_partitions_would_exchange_stay_with_pytorch() -> None:
    """Where what is not compiled is between two of their operators, the two are in different partitions."""

    def program(x: Any) -> Any:
        z = torch.fft.rfft(x.exp().sin() + 1)
        total = z.abs().sum()
        return (z * total.exp()).abs().sum() + torch.fft.irfft(spectral(x) + 0j, n=8).sum()

    def refused(node: Any) -> str | None:
        return "it is a sum" if "sum" in str(node.target) and node.meta["val"].dim() == 0 else unsupported(node)

    x = torch.randn(4, 12)
    captured = make_fx(program, tracing_mode="fake")(x)
    found = split(captured, set(), refused)
    assert any("complex" in reason for reason in found.left), found.left
    for name in found.nodes:
        inner = found.module.get_submodule(name)
        ends = [*inner.graph.find_nodes(op="placeholder"), *inner.graph.output_node().all_input_nodes]
        assert not any(node.meta["val"].is_complex() for node in ends)
    torch.testing.assert_close(found.module(x), program(x))


def test_a_partition_keeps_the_graphs_order() -> None:
    """What the sum of two products is fused with follows from which comes last."""

    def program(x: Any, w: Any) -> Any:
        return (x @ w).relu() + (x.relu() @ w)

    captured = make_fx(program)(torch.ones(2, 3), torch.ones(3, 3))
    names = [node.name for node in captured.graph.nodes if node.op == "call_function"]
    for inside in (names, names[::-1], names[2:] + names[:2]):
        module = fx.GraphModule(captured, fx.Graph())
        module.graph.output(module.graph.graph_copy(captured.graph, {}))
        fuse(module, [inside])
        inner = module.get_submodule("pitchpipe_0").graph
        assert [node.name for node in inner.nodes if node.op == "call_function"] == names


def looked_up(table: Any, rows: Any, kinds: Any, of: Any, bias: Any, places: Any) -> Any:
    """Indices that are arguments, constants, and numbers of an argument at places that another tells."""
    x = torch.embedding(table, rows[:, :4].to(torch.int64))
    x = x + torch.embedding(table, torch.arange(4)) + torch.embedding(table, kinds.gather(-1, of))
    return x @ bias[places.view(-1)].view(6, 6)


def captured_look_up() -> Any:
    rows, kinds, of = torch.zeros(2, 8, dtype=torch.int32), torch.zeros(9, dtype=torch.int64), torch.zeros(4).long()
    given = (torch.ones(5, 6), rows, kinds, of, torch.ones(12), torch.zeros(6, 6).long())
    return make_fx(looked_up)(*given), given


def test_bounds_of_indices_are_those_of_the_arguments_that_hold_them() -> None:
    graph, _ = captured_look_up()
    assert bounds(graph.graph, ()) == {"rows_1": (0, 4), "kinds_1": (0, 4), "of_1": (0, 8), "places_1": (-12, 11)}


@pytest.mark.parametrize(("readable", "count"), [(None, 5), ({"kinds_1", "of_1", "places_1"}, 4), (set(), 1)])
def test_indices_are_checked_where_they_can_be_read(readable: set[str] | None, count: int) -> None:
    """Of the five operators that index here, one by a constant."""
    graph, _ = captured_look_up()
    assert sum(can_be_checked(node, readable) for node in graph.graph.nodes) == count


def test_indices_that_were_computed_or_are_wrong_cannot_be_checked() -> None:
    def computed(table: Any, x: Any) -> Any:
        return torch.embedding(table, x.argmax(1)) + torch.embedding(table, torch.arange(2, 6)).sum()

    graph = make_fx(computed, tracing_mode="fake")(torch.ones(5, 6), torch.ones(4, 6))
    assert not any(can_be_checked(node, None) for node in graph.graph.nodes)
    indexing = [node for node in graph.graph.nodes if "embedding" in node.name]
    assert all("checks its indices" in str(unsupported(node)) for node in indexing)


def test_literals_are_constants_and_other_tensors_of_a_program_are_weights() -> None:
    row = torch.arange(3.0)

    def program(x: Any, w: Any) -> Any:
        return torch.where(x > 0, torch.tensor(0.5), x) @ w * torch.tensor([1.0, 2.0, 3.0]) + row

    x, w = torch.randn(2, 3), torch.randn(3, 3)
    captured = make_fx(program)(x, w)
    write_out(captured)
    captured.recompile()
    assert torch.equal(captured(x, w), program(x, w))
    again = decode(encode(captured))
    found = split(again, {"w_1"}, unsupported)
    ((name, weights),) = found.weights.items()
    assert found.left == {}
    assert weights == {"w_1", "_tensor_constant1", "_tensor_constant2"}
    fuse(captured, [found.nodes[name]])
    assert torch.equal(captured(x, w), program(x, w))


def test_what_follows_from_nothing_that_is_given_is_computed_once() -> None:
    """Positions by a running sum, a mask that hides nothing, and buckets of distances by logarithms."""

    def program(x: Any) -> Any:
        ones = torch.ones(1, 4, dtype=torch.int64)
        at = ones.cumsum(1) - 1
        mask = (at[:, None] <= at[..., None]) | (at >= 0)[:, None]
        far = (at - at.mT).abs().clamp(min=1).float().log().mul(3).long()
        zeros, rows = torch.zeros(4, dtype=torch.bool), torch.arange(4).expand(3, 4)
        return x[:, at[0]] + far, torch.where(mask[0], x, 2.0), zeros, rows

    x = torch.randn(4, 4)
    captured = make_fx(program)(x)
    right = program(x)
    write_out(captured)
    captured.recompile()
    left = [node.target.__name__ for node in captured.graph.nodes if node.op == "call_function"]
    assert not {"cumsum.default", "log.default", "le.Tensor", "bitwise_or.Tensor"} & set(left)
    assert {"arange.start_step", "full.default", "lift_fresh_copy.default"} <= set(left)
    for _ in range(2):
        found = captured(x)
        for one, other in zip(found, right, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        found[2].fill_(True)  # a program may write into what it was given
    found = split(captured, set(), lambda node: unsupported(node, indices_checked=can_be_checked(node, None)))
    assert found.left == {}


def test_what_is_drawn_lies_in_memory_or_is_large_is_left() -> None:
    def program(x: Any) -> Any:
        return x + torch.rand(4) + torch.empty(4).isnan() + torch.arange(2 << 20).sum() + torch.ones(2 << 20)[:4]

    captured = make_fx(program)(torch.randn(4))
    before = [node.name for node in captured.graph.nodes]
    write_out(captured)
    assert [node.name for node in captured.graph.nodes] == before


INTERVALS = {
    "a place along an axis": (lambda x, _: x.argmax(1), (0, 6)),
    "a place among all": (lambda x, _: x.argmin(), (0, 27)),
    "places of the largest": (lambda x, _: x.topk(2, 0)[1], (0, 3)),
    "places of a maximum": (lambda x, _: x.max(1)[1].view(2, 2), (0, 6)),
    "an order": (lambda x, _: x.sort(dim=0, stable=True)[1][1:], (0, 3)),
    "a count": (lambda x, _: (x > 0).cumsum(1) * 2 - 1, (-1, 13)),
    "positions of what is no padding": (lambda _, i: i.ne(1).int().cumsum(1).int() * i.ne(1).int() + 1, (1, 4)),
    "a bound": (lambda _, i: i.clamp(-2, 5), (-2, 5)),
    "a bound of what is known": (lambda x, _: x.argmax(1).clamp(min=0, max=3), (0, 3)),
    "one bound": (lambda _, i: i.clamp(min=0), None),
    "a remainder": (lambda _, i: i.remainder(7), (0, 6)),
    "either": (lambda x, i: torch.where(i > 0, x.argmax(1)[:1, None], i.remainder(10)), (0, 9)),
    "together": (lambda x, _: torch.cat([x.argmax(1), x.argmin(0)]), (0, 6)),
    "what is given": (lambda _, i: i + 1, None),
    "a fraction": (lambda x, _: (x * 3).long(), None),
    "bits": (lambda x, _: x.argmax(1).view(torch.float64).view(torch.int64), None),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_numbers_lie_in_their_interval(name: str) -> None:
    function, expected = INTERVALS[name]
    given = torch.randn(4, 7), torch.randint(-9, 9, (2, 3))
    graph = make_fx(function)(*given).graph
    (result,) = graph.output_node().all_input_nodes
    assert interval(result) == expected
    if expected is not None:
        assert expected[0] <= int(function(*given).min()) <= int(function(*given).max()) <= expected[1]


def test_what_is_proved_needs_no_look() -> None:
    def program(x: Any, table: Any, places: Any) -> Any:
        return table[x.argmax(1)] + table[places]

    graph = make_fx(program)(torch.randn(4, 7), torch.randn(7, 2), torch.zeros(4).long()).graph
    proved = {node.name for node in graph.nodes if is_proved(node)}
    assert len(proved) == 1
    assert bounds(graph, proved) == {"places_1": (-7, 6)}
    indexing = [node for node in graph.nodes if "index" in node.name]
    assert [can_be_checked(node, ()) for node in indexing] == [True, False]
