"""PyTorch: modules and TorchScript in eager, exported programs as torch runs them, ties by place. Needs torch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from pitchpipe.model.comparison import HALF_PRECISION, PRECISION, less_precise
from pitchpipe.model.reference.expected import CannotRun, ModelFile
from pitchpipe.torch_operators.arrays import to_array, to_tensor
from pitchpipe.torch_operators.in_float32 import InFloat32, in_float32
from pitchpipe.torch_operators.ties import TiesByPlace

ASSERTING = frozenset(("cuda",))
"""Devices on which an index out of range ends the process's context, so that nothing runs there any more."""
INDEXING = frozenset(
    (
        *("embedding", "_embedding_bag", "_embedding_bag_forward_only", "gather", "index", "index_add", "index_copy"),
        *(
            "index_fill",
            "index_put",
            "_index_put_impl",
            "index_select",
            "masked_scatter",
            "max_unpool2d",
            "max_unpool3d",
        ),
        *("nll_loss_forward", "nll_loss2d_forward", "put", "scatter", "scatter_add", "scatter_reduce", "take"),
        *("_unsafe_index", "_unsafe_index_put"),
    )
)
"""Operators whose indices must be in range, without the underscore of those that write in place."""


class TorchRunner:
    """A callable of PyTorch on a copy of its module: buffers, attributes, random numbers and inputs stay the caller's.

    On a GPU an index out of range ends the caller's process, not the call. So a module that indexes by what it has computed
    from its inputs runs on a GPU with the caller's examples alone until it has run on a CPU with others, where such an index
    raises an error.
    """

    steps: tuple[float, ...] = ()
    computed: str | None = None
    rounded = None

    def __init__(self, module: Any, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> None:
        self.name = f"PyTorch {torch.__version__}"
        self.weights: dict[str, np.ndarray] = {}
        self._module = own_copy(module)
        self._leaves, self._spec = pytree.tree_flatten((tuple(arguments), dict(keywords or {})))
        self._tensors = [at for at, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        self.examples = [to_array(self._leaves[at]).copy() for at in self._tensors]
        held = module.parameters() if isinstance(module, torch.nn.Module) else ()
        self._asserts = any(
            one.device.type in ASSERTING for one in (*map(self._leaves.__getitem__, self._tensors), *held)
        )
        self._ran = self._indexes = False

    def peer(self, arrays: Sequence[np.ndarray], threads: int) -> tuple[str, Callable[[], object]]:
        """Eager mode, as a program runs it for inference."""
        torch.set_num_threads(threads)
        arguments, keywords = self._arguments(arrays)

        def call() -> object:
            with torch.inference_mode():
                return self._module(*arguments, **keywords)

        return f"eager PyTorch {torch.__version__}", call

    def _arguments(self, arrays: Sequence[np.ndarray]) -> tuple[Any, Any]:
        """Positional ones and keywords, with these arrays for their tensors."""
        leaves = list(self._leaves)
        for at, array in zip(self._tensors, arrays, strict=True):
            leaves[at] = to_tensor(array).to(self._leaves[at].device)
        found: tuple[Any, Any] = pytree.tree_unflatten(leaves, self._spec)
        return found

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        arguments, keywords = self._arguments(arrays)
        if self._ran and self._asserts and self._indexes:
            self._on_cpu(arguments, keywords)
        tensors = [leaf for leaf in pytree.tree_leaves((arguments, keywords)) if isinstance(leaf, torch.Tensor)]
        watching = contextlib.nullcontext() if self._ran else _Watching(tensors)
        found = self._run(arguments, keywords, watching)
        if isinstance(watching, _Watching):
            self.computed, self._indexes, self._ran = watching.least, watching.indexes, True
        return [to_array(leaf).copy() for leaf in found]

    def _run(self, arguments: Any, keywords: Any, mode: AbstractContextManager[object]) -> list[torch.Tensor]:
        """The tensors that the module gives."""
        with torch.random.fork_rng(), torch.no_grad(), without_tf32(), TiesByPlace(), mode:
            torch.manual_seed(int.from_bytes(np.random.default_rng().bytes(4), "little"))  # noise is to show as noise
            found = self._module(*arguments, **keywords)
        return [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]

    @property
    def widened(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None:
        """See Runner.widened."""
        return self._widened if self.computed in HALF_PRECISION else None

    def _widened(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        arguments, keywords = pytree.tree_map(in_float32, self._arguments(arrays))
        # In this mode others see convolutions whole, before the types of their inputs are compared.
        with torch.inference_mode():
            return [to_array(leaf).copy() for leaf in self._run(arguments, keywords, InFloat32())]

    def _on_cpu(self, arguments: Any, keywords: Any) -> None:
        """Raises what the module raises there, and TypeError where it cannot be moved."""
        if not isinstance(self._module, torch.nn.Module):
            raise TypeError("a function that computes indices is not run on a GPU with inputs that are drawn")
        there = {
            id(each): torch.nn.Parameter(each.detach().cpu(), each.requires_grad) for each in self._module.parameters()
        }
        module = copy.deepcopy(self._module, there).cpu()
        given, named = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.cpu(), (arguments, keywords))
        with torch.random.fork_rng(), torch.no_grad(), torch.device("cpu"):
            module(*given, **named)


class _Watching(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Notes of all tensors that operators give the least precise floating-point type, and whether anything is indexed by
    what was computed from the inputs."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.least: str | None = None
        self.indexes = False
        self._inputs = WeakTensorKeyDictionary(dict.fromkeys(inputs, True))
        self._computed = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        name = function._schema.name.partition("::")[2].rstrip("_")
        whole = (leaf for leaf in given if not leaf.is_floating_point())
        self.indexes = self.indexes or (name in INDEXING and any(leaf in self._computed for leaf in whole))
        found = function(*args, **(kwargs or {}))
        from_inputs = any(leaf in self._inputs or leaf in self._computed for leaf in given)
        for leaf in pytree.tree_leaves(found):
            if not isinstance(leaf, torch.Tensor):
                continue
            dtype = str(leaf.dtype).removeprefix("torch.")
            if dtype in PRECISION:
                self.least = less_precise(self.least, dtype)
            if from_inputs and leaf not in self._inputs:
                self._computed[leaf] = True
        return found


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Products, convolutions and recurrent layers of float32 as IEEE has them, also where PyTorch's switches allow GPUs
    TF32, as they do by default for the latter two: what is compared with must be the more precise. For the whole process,
    as those switches are. Older releases have other switches (`allow_tf32`), which cannot be asked once newer ones are set.
    """
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer = hasattr(cuda, "fp32_precision")
    name, ieee = ("fp32_precision", "ieee") if newer else ("allow_tf32", False)
    switches = (cuda, cudnn.conv, cudnn.rnn) if newer else (cuda, cudnn)
    before = [getattr(switch, name) for switch in switches]
    try:
        for switch in switches:
            setattr(switch, name, ieee)
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(switch, name, value)


def own_copy(module: Any) -> Any:
    """A copy that shares its parameters, which no inference changes."""
    if not isinstance(module, torch.nn.Module):
        return module  # a function of TorchScript: it keeps nothing
    shared = {} if isinstance(module, torch.jit.ScriptModule) else {id(each): each for each in module.parameters()}
    try:
        return copy.deepcopy(module, shared)
    except Exception as error:  # whatever a module keeps that cannot be copied: TypeError, RuntimeError, ...
        raise CannotRun(f"a {type(module).__name__} cannot be copied: {str(error)[:200]}") from error


def exported_program(program: Any) -> TorchRunner:
    """Of torch.export.ExportedProgram; its example inputs, if it was saved without, are drawn."""
    if program.example_inputs is not None:
        arguments, keywords = program.example_inputs
        return TorchRunner(program.module(), arguments, keywords)
    names = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    spec = program.call_spec.in_spec
    if spec is None or len(values) != spec.num_leaves:
        raise CannotRun("the program does not tell its inputs")
    arguments, keywords = pytree.tree_unflatten([_drawn(value) for value in values], spec)
    return TorchRunner(program.module(), arguments, keywords)


def _drawn(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    shape = [int(extent) for extent in value.shape]
    generator = torch.Generator().manual_seed(0)
    if value.is_floating_point():
        return torch.randn(shape, generator=generator).to(value.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(value.dtype)


def from_torchscript(file: ModelFile) -> TorchRunner:
    """Of a file that torch.jit.save wrote. Loading one can run code."""
    loaded = torch.jit.load(str(file.path), map_location="cpu").eval()
    return TorchRunner(loaded, [to_tensor(example) for example in file.examples])


def from_pt2(file: ModelFile) -> TorchRunner:
    """Of a file that torch.export.save wrote. Loading one can run code."""
    return exported_program(torch.export.load(file.path))
