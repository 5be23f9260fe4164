"""What PyTorch writes for a task: its operators, on tensors as PyTorch likes them.

A task is read by the operators in its name and the shapes of its arguments. PyTorch gets what favours it: a half-precision
bias where a folded one is float32, filters in channels last, the weights of joined projections as one matrix. Whether the
operators compute what the task computes is not inferred but measured (task_table.py compares the results): an attribute that
a shape does not tell, such as a window or the limits of a clip, is guessed as the models of the benchmarks have it, and a
task for which every guess is wrong has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.task import Signature


class NoEquivalent(Exception):
    """The task has operators or shapes that are not known here."""


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """A function of PyTorch for a task."""

    arguments: tuple[Any, ...]
    """Made of the task's inputs beforehand, as a model keeps its weights."""
    function: Callable[..., Any]
    """Of the arguments; what is timed."""
    restored: Callable[[Any], Any]
    """The result with the task's axes."""


def equivalents(torch: Any, signature: Signature, inputs: Sequence[Any]) -> list[Equivalent]:
    """PyTorch's function for a task; several where the shapes leave a choice, and what a wrong one does with them may raise
    RuntimeError.

    signature: `operators` names the task's operators in order, the last of `arguments` is its result. inputs: tensors for
    all other arguments. Raises NoEquivalent.
    """
    words = [name for name in signature.operators.replace("layer_norm", "layernorm").split("_") if name != "cast"]
    result = signature.arguments[-1].shape
    first = next((word for word in words if word in _FIRST), None)
    if first is None or len(inputs) != len(signature.arguments) - 1:
        raise NoEquivalent(f"{signature.operators} has no equivalent here")
    lying = [list(inputs)]
    if _multiplies_weights(first, inputs) and inputs[0].dtype == torch.float32:
        lying += [[inputs[0], weight, *inputs[2:]] for weight in _summed_first(inputs[1])]
    found, reasons = list[Equivalent](), list[str]()
    for one in lying:
        try:
            if first == "conv2d":
                found += [_convolution(torch, words, list(one), tuple(result), even) for even in (True, False)]
            else:
                found.append(_FIRST[first](torch, words, one, tuple(result)))
        except (NoEquivalent, RuntimeError) as error:
            reasons.append(str(error))
    if not found:
        raise NoEquivalent(reasons[0])
    return found


def _multiplies_weights(first: str, inputs: Sequence[Any]) -> bool:
    return first in ("conv2d", "einsum", "matmul") and len(inputs) > 1 and inputs[1].dim() > 1


def _summed_first(weight: Any) -> list[Any]:
    """A weight of TF32, whose summed axes are last, as one whose outputs are: filters of one position, filters whose windows
    come before or behind their channels, or matrices."""
    orders = [(0, 1, 3, 2), (1, 2, 3, 0), (2, 3, 1, 0)] if weight.dim() == 4 else []
    return [weight.permute(order) for order in orders] or [weight.transpose(-1, -2)]


def _convolution(
    torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...], even: bool = True
) -> Equivalent:
    """even: padded by half the window on every side, else as little as the result's size needs, as TensorFlow does."""
    x, weight, *others = inputs
    images = x if x.shape[1] in (1, 3) else x.permute(0, 3, 1, 2)
    height, _, channels, outputs = weight.shape  # HWIO
    filters = weight.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    groups = images.shape[1] // channels
    stride = round(images.shape[2] / result[1])
    need = max((result[1] - 1) * stride + height - images.shape[2], 0)
    before, after = ((need + 1) // 2,) * 2 if even else (need // 2, need - need // 2)
    images = images.contiguous(memory_format=torch.channels_last)
    bias = others.pop(0).reshape(outputs).to(x.dtype) if words[1:2] == ["add"] else None
    others = [other.to(x.dtype).permute(0, 3, 1, 2) for other in others]
    rest = words[2 if bias is not None else 1 :]
    later = _after(torch, rest, len(others))
    conv2d, pad = torch.nn.functional.conv2d, torch.nn.functional.pad

    def run(images: Any, filters: Any, bias: Any, *others: Any) -> Any:
        if before != after:
            images = pad(images, (before, after) * 2)
        y = conv2d(images, filters, bias, stride=stride, padding=before if before == after else 0, groups=groups)
        return later(y, others)

    return Equivalent(
        arguments=(images, filters, bias, *others), function=run, restored=lambda y: y.permute(0, 2, 3, 1)
    )


def _patches(torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...]) -> Equivalent:
    """The patch embedding of vision transformers: an image cut into patches, times a matrix."""
    x, weight, *others = inputs
    if x.dim() != 5 or words != ["einsum", "add"]:
        raise NoEquivalent(f"{' '.join(words)} of {tuple(x.shape)} has no equivalent here")
    channels, rows, size, columns, _ = x.shape
    image = x.reshape(1, channels, rows * size, columns * size).contiguous(memory_format=torch.channels_last)
    filters = weight.permute(3, 0, 1, 2).contiguous(memory_format=torch.channels_last)
    bias = others[0].to(x.dtype)
    conv2d = torch.nn.functional.conv2d
    return Equivalent(
        arguments=(image, filters, bias),
        function=lambda image, filters, bias: conv2d(image, filters, bias, stride=size),
        restored=lambda y: y.permute(0, 2, 3, 1).reshape(result),
    )


def _product(torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...]) -> Equivalent:
    x, weight, *others = inputs
    joined = weight.dim() == x.dim() + 1
    if joined:  # Projections of one input, a matrix each: PyTorch has one matrix.
        count, length, width = weight.shape
        matrix = weight.permute(1, 0, 2).reshape(length, count * width)
    else:
        matrix = weight
    linear = matrix.dim() == 2
    bias = None
    if words[1:2] == ["add"] and others and others[0].numel() == matrix.shape[-1] and linear:
        bias = others.pop(0).reshape(-1).to(x.dtype)
    others = [other.to(x.dtype) for other in others]
    later = _after(torch, words[2 if bias is not None else 1 :], len(others))
    kept = matrix.t().contiguous() if linear else matrix

    def run(x: Any, kept: Any, bias: Any, *others: Any) -> Any:
        y = torch.nn.functional.linear(x, kept, bias) if linear else torch.matmul(x, kept)
        return later(y, others)

    def restored(y: Any) -> Any:
        return y.reshape(-1, result[0], result[2]).permute(1, 0, 2) if joined else y.reshape(result)

    return Equivalent(arguments=(x, kept, bias, *others), function=run, restored=restored)


def _attention(torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...]) -> Equivalent:
    if len(inputs) != 3 or any(each.dim() != 3 for each in inputs) or words != ["attention"]:
        raise NoEquivalent("attention with a mask or other axes has no equivalent here")
    attend = torch.nn.functional.scaled_dot_product_attention
    by_head = [each if each.shape[0] == result[1] != each.shape[1] else each.permute(1, 0, 2) for each in inputs]
    return Equivalent(
        arguments=tuple(each[None] for each in by_head),
        function=lambda q, k, v: attend(q, k, v),
        restored=lambda y: y[0].permute(1, 0, 2).reshape(result),
    )


def _norm(torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...]) -> Equivalent:
    *summed, scale, shift = inputs
    if words[-1] != "layernorm" or len(summed) != len(words):
        raise NoEquivalent("a norm with other work around it has no equivalent here")
    norm = torch.nn.functional.layer_norm

    def run(scale: Any, shift: Any, first: Any, *more: Any) -> Any:
        for other in more:
            first = first + other
        return norm(first, (result[-1],), scale, shift)

    return Equivalent(arguments=(scale, shift, *summed), function=run, restored=lambda y: y.reshape(result))


def _mean(torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...]) -> Equivalent:  # noqa: ARG001
    if words != ["mean"] or inputs[0].dim() != 4:
        raise NoEquivalent("a mean with other work around it has no equivalent here")
    return Equivalent(arguments=(inputs[0],), function=lambda x: x.mean((1, 2)), restored=lambda y: y.reshape(result))


def _pool(torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...]) -> Equivalent:  # noqa: ARG001
    (x,) = inputs
    pool = torch.nn.functional.max_pool2d
    return Equivalent(
        arguments=(x.permute(0, 3, 1, 2),),
        function=lambda x: pool(x, 3, 2, 1),
        restored=lambda y: y.permute(0, 2, 3, 1),
    )


def _look_up(torch: Any, words: list[str], inputs: list[Any], result: tuple[int, ...]) -> Equivalent:
    if len(inputs) != 2 or set(words) - {"reshape", "take"}:
        raise NoEquivalent(f"{' '.join(words)} has no equivalent here")
    return Equivalent(
        arguments=tuple(inputs),
        function=lambda indices, table: torch.nn.functional.embedding(indices, table),
        restored=lambda y: y.reshape(result),
    )


_FIRST: dict[str, Callable[[Any, list[str], list[Any], tuple[int, ...]], Equivalent]] = {
    "conv2d": _convolution,
    "einsum": _patches,
    "matmul": _product,
    "attention": _attention,
    "layernorm": _norm,
    "mean": _mean,
    "max": _pool,
    "take": _look_up,
}
"""By the first operator of a task that is one of these."""


def _after(torch: Any, words: list[str], others: int) -> Callable[[Any, Sequence[Any]], Any]:
    """What follows a product or convolution: activations, and sums with further arguments."""
    if unknown := set(words) - {"add", "relu", "gelu", "maximum", "minimum"}:
        raise NoEquivalent(f"{' '.join(sorted(unknown))} after a product has no equivalent here")
    if words.count("add") != others:
        raise NoEquivalent("sums with numbers have no equivalent here")

    def run(y: Any, others: Sequence[Any]) -> Any:
        left = list(others)
        for word in words:
            if word == "add":
                y = y + left.pop(0)
            elif word == "gelu":
                y = torch.nn.functional.gelu(y)
            elif word in ("relu", "maximum"):
                y = torch.nn.functional.relu6(y) if "minimum" in words else torch.relu(y)
        return y

    return run
