"""Python text of a small graph of ATen operators: the framework's half of a script.

No text of the model becomes code: names are made here, operators are named as torch registered them, and of arguments
only numbers, text as literals, types, devices and lists of them are written.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_OPERATOR = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

_RUN = '''
def tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def array(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(np.dtype("bfloat16"))
    return tensor.numpy()


def reference(inputs, weights):
    """What PyTorch computes."""
    with torch.no_grad():
        return [array(each) for each in Part(weights)(*map(tensor, inputs))]


def ours(inputs, weights):
    """What pitchpipe makes of it."""
    import pitchpipe

    found = pitchpipe.load(Part(weights).eval(), None, tuple(map(tensor, inputs)))(*inputs)
    return list(found) if isinstance(found, tuple) else [found]
'''


class NoText(Exception):
    """An argument that cannot be written."""


def code_of(
    units: Sequence[Sequence[Any]], takes: Sequence[str], constants: Sequence[str], gives: Sequence[str]
) -> str:
    """Text that defines a module `Part`, `reference(inputs, weights)` and `ours(inputs, weights)`."""
    names = {name: f"x{index}" for index, name in enumerate(takes)}
    names |= {name: f"self.w{index}" for index, name in enumerate(constants)}
    lines = ["import torch", "from torch import nn", "", "", "class Part(nn.Module):"]
    lines += ["    def __init__(self, weights):", "        super().__init__()"]
    lines += [
        f"        self.register_buffer('w{index}', tensor(weights[{name!r}]))" for index, name in enumerate(constants)
    ]
    lines += ["", f"    def forward(self{''.join(f', x{index}' for index in range(len(takes)))}):"]
    for unit in units:
        for node in unit:
            names[node.name] = f"v{len(names)}"
            if node.target is operator.getitem:
                lines.append(f"        {names[node.name]} = {names[node.args[0].name]}[{int(node.args[1])}]")
                continue
            arguments = [_text(each, names) for each in node.args]
            arguments += [f"{_identifier(key)}={_text(each, names)}" for key, each in node.kwargs.items()]
            lines.append(f"        {names[node.name]} = {_target(node.target)}({', '.join(arguments)})")
    given = ", ".join(names[name] for name in gives)
    return "\n".join([*lines, f"        return ({given},)", ""]) + _RUN


def _target(target: Any) -> str:
    if not isinstance(target, torch._ops.OpOverload):
        raise NoText(f"{target} is no ATen operator")
    packet = target._schema.name.split("::")
    parts = [*packet, target._overloadname]
    return "torch.ops." + ".".join(map(_identifier, parts))


def _identifier(name: str) -> str:
    if not _OPERATOR.match(name):
        raise NoText(f"{name!r} is no name")
    return name


def _text(value: Any, names: dict[str, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value.name]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(each, names) for each in value)}]"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if value - value == 0 else f"float({str(value)!r})"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    raise NoText(f"{type(value).__name__} has no text")
