"""A workload with a template: what is launched, and its machine code.

A candidate's text marks the workload's function (`marked`), which is what other candidates' schedules change. So a module
passes through preparation and deployment as any other; where TVM would lower a function, one that is marked becomes kernels
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pitchpipe.gpu.program import MAP_TYPES, Pointer, TensorMap
from tuner.templates import assembler, compiler
from tuner.templates.attention import find_attention
from tuner.templates.attention_source import write_attention
from tuner.templates.contraction import find_contraction
from tuner.templates.joined_source import write_joined
from tuner.templates.kernel_source import KernelSource, TemplateSource
from tuner.templates.row_source import write_rows
from tuner.templates.rows import find_rows
from tuner.templates.source import write_contraction
from tuner.templates.text import CONTRACTION_TMA, ROWS, Chosen, parse
from tuner.templates.tma_source import write_with_tma
from tuner.tvm_compat import IRModule

TEMPLATE = "pitchpipe.template"
"""Attribute of a tensor function: the text of the template that computes it, in place of its body."""
THEN, READS, KEEPS = "pitchpipe.then", "pitchpipe.reads", "pitchpipe.keeps"
"""Attributes of a tensor function that a template computes and that is followed by another one, whose parameters come behind
its own: that function, which of its parameters is this one's result, and whether the result is written as well."""
_HEADER = (".version", ".target", ".address_size", ".extern .shared")
"""Lines that PTX of several kernels has once."""


@dataclass(frozen=True, kw_only=True)
class TemplateLaunch:
    """A launch of one of the kernels."""

    kernel: str
    arguments: tuple[int | bytes | TensorMap, ...]
    """Indices into the function's parameters, and after them its workspaces; scalars as the device reads them; tensor maps
    whose base's `buffer` is such an index."""
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    programmatic: bool
    cluster: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class TemplateKernels:
    """What a workload with a template runs."""

    launches: tuple[TemplateLaunch, ...]
    workspaces: tuple[int, ...]
    """Bytes of each."""
    code: bytes
    """A cubin with all kernels."""


def marked(mod: Any, text: str) -> Any:
    """The module whose main is computed by the template of that text. Raises InvalidTrace where it does not apply."""
    chosen = parse(text)
    source_of(mod, chosen)
    functions = {variable.name_hint: function for variable, function in mod.functions_items()}
    return IRModule({**functions, "main": functions["main"].with_attr(TEMPLATE, chosen.text)})


def template_of(function: Any) -> str | None:
    """The text of the template that computes a function; None where its body does."""
    text = (function.attrs or {}).get(TEMPLATE)
    return None if text is None else str(text)


def followed(function: Any, then: Any, *, reads: int, keeps: bool) -> Any:
    """Two marked functions as one that takes the parameters of both: the second adds the parts of the first one's sums.

    reads: which of the second one's parameters is the first one's result. keeps: whether that is written, too. Raises
    InvalidTrace where the two cannot be joined.
    """
    made = function.with_attr({THEN: then.without_attr("global_symbol"), READS: reads, KEEPS: keeps})
    _source(made)
    return made


def source_of(mod: Any, chosen: Chosen) -> TemplateSource:
    """The kernels of a workload in Triton. Raises InvalidTrace where the template does not apply to it."""
    if chosen.template == ROWS:
        chain = find_rows(mod)
        if chosen.arguments["keys"]:
            return write_attention(find_attention(chain), chosen.arguments)
        return write_rows(chain, chosen.arguments)
    write = write_with_tma if chosen.template == CONTRACTION_TMA else write_contraction
    return write(find_contraction(mod), chosen.arguments)


def compile_function(function: Any, arch: str) -> TemplateKernels:
    """The kernels of a marked function.

    Raises InvalidTrace where the template does not apply, NotCompiled or AssemblerError.
    """
    source = _source(function)
    found = [compiler.to_ptx(kernel, arch) for kernel in source.kernels]
    hidden = [bytes(8)] * compiler.HIDDEN_PARAMETERS
    launches = tuple(
        TemplateLaunch(
            kernel=compiled.name,
            arguments=(*_of_matrices(kernel, compiled), *kernel.arguments, *hidden),
            grid=kernel.grid,
            threads=compiled.threads,
            shared_bytes=compiled.shared_bytes,
            programmatic=kernel.early,
            cluster=(1, kernel.cluster, 1),
        )
        for kernel, compiled in zip(source.kernels, found, strict=True)
    )
    code = assembler.assemble(_joined([one.ptx for one in found]), assembler.machine(arch))
    return TemplateKernels(launches=launches, workspaces=source.workspaces, code=code)


def _of_matrices(kernel: KernelSource, compiled: compiler.Compiled) -> Iterator[bytes | TensorMap]:
    """What a kernel takes for its matrices: a tensor map each, then extents and strides, which it does not read."""
    for matrix, (box, swizzle) in zip(kernel.matrices, compiled.copied, strict=True):
        item = MAP_TYPES[matrix.dtype]
        yield TensorMap(
            base=Pointer(buffer=matrix.parameter),
            dtype=matrix.dtype,
            sizes=(matrix.columns, matrix.rows),
            strides=(matrix.stride * item,),
            box=box,
            swizzle=swizzle,
        )
        for extent in (matrix.rows, matrix.columns):
            yield extent.to_bytes(4, "little")
        for stride in (matrix.stride, 1):
            yield stride.to_bytes(8, "little")


def triton_of(function: Any) -> str:
    """The Triton programs of a marked function's kernels. Raises InvalidTrace."""
    return "\n".join(kernel.text for kernel in _source(function).kernels)


def ptx_of(function: Any, arch: str) -> str:
    """The PTX of a marked function's kernels. Raises InvalidTrace, NotCompiled."""
    return _joined([compiler.to_ptx(kernel, arch).ptx for kernel in _source(function).kernels])


def _source(function: Any) -> TemplateSource:
    chosen = _chosen(function)
    then = function.attrs.get(THEN)
    if then is None:
        return source_of(IRModule({"main": function}), chosen)
    product, chain = find_contraction(IRModule({"main": function})), find_rows(IRModule({"main": then}))
    return write_joined(
        product, chosen, chain, _chosen(then), reads=int(function.attrs[READS]), keeps=bool(function.attrs[KEEPS])
    )


def _chosen(function: Any) -> Chosen:
    text = template_of(function)
    assert text is not None
    return parse(text)


def _joined(texts: list[str]) -> str:
    """One PTX module of several, whose names are distinct."""
    first, *others = texts
    rest = ["\n".join(line for line in text.splitlines() if not line.startswith(_HEADER)) for text in others]
    return "\n".join([first, *rest])
