"""`torch.compile(model, backend="pitchpipe")`: look schedules up, else run what PyTorch would. It never tunes by itself.

torch finds this package through the entry-point group "torch_dynamo_backends" and imports it when it is asked for by name.
A graph's way: Dynamo -> AOTAutograd with decompositions to core ATen (decompositions.py, program.py) -> beside the program,
whose calls run as they would without: what TVM can take is cut out by a child (cutting.py; dynamic.py for symbolic sizes),
its workloads are looked up (schedules.py), libraries come from the cache or are built in children (part.py), all of that in
graphs.py -> right and faster than PyTorch by a measurement on a later call's own tensors (chosen.py, paired_benchmark.py),
or not used -> run on the program's own memory (run.py).

Whatever goes wrong in here, the program runs as it would without, after one warning. Only options that are not known raise.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.utils import GmWrapper, counters, flatten_graph_inputs
from torch.utils._pytree import tree_leaves

from pitchpipe.torch_backend import schedules
from pitchpipe.torch_backend.beside import allowance
from pitchpipe.torch_backend.chosen import Chosen
from pitchpipe.torch_backend.decompositions import for_training, whole_operators
from pitchpipe.torch_backend.options import Options, parse
from pitchpipe.torch_backend.program import Program
from pitchpipe.torch_backend.recurrent_layers import capture_recurrent_layers
from pitchpipe.torch_backend.report import CompileReport, ProgramReport
from pitchpipe.torch_backend.uncompiled import uncompiled
from pitchpipe.torch_backend.warning import BackendWarning, forget_warnings, warn_once
from pitchpipe.torch_operators import attention
from pitchpipe.torch_operators.decompositions import inference_decompositions

__all__ = ["BackendWarning", "CompileReport", "backend", "explain", "recompile", "reports"]

Run = Callable[..., Any]

_programs: weakref.WeakValueDictionary[int, Chosen] = weakref.WeakValueDictionary()
"""In the order in which they were compiled."""
_numbers = itertools.count()


def backend(
    module: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Run:
    """What torch.compile calls with each captured graph. Raises InvalidInput for modes and options it does not know.

    mode: `max-autotune` submits what is missing as a job and waits for it; `reduce-overhead` records CUDA graphs on a
    GPU and does nothing elsewhere. options: see options.py.
    """
    return _compiled(module, inputs, parse(mode, options), None)


def explain(
    model: Any, inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> CompileReport:
    """Compiles the model anew, runs it once and tells what became of it; print the result.

    `inputs` are positional arguments, in a tuple or a list. Graphs, partitions, tiers, what runs eagerly and why, times
    that are expected and that were measured. Forgets, as torch._dynamo.explain does, what was compiled before.
    """
    chosen, found = parse(mode, options), CompileReport()

    def recording(module: Any, example: Sequence[Any]) -> Run:
        return _compiled(module, example, chosen, found.programs)

    recompile()
    breaks = dict(counters["graph_break"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        _run_backward(model, given, torch.compile(model, backend=recording)(*given))
    found.warnings = [str(one.message) for one in caught if issubclass(one.category, BackendWarning)]
    found.graph_breaks = {
        reason: times - breaks.get(reason, 0)
        for reason, times in counters["graph_break"].items()
        if times > breaks.get(reason, 0)
    }
    torch._dynamo.reset()
    return found


def _run_backward(model: Any, given: Sequence[Any], found: Any) -> None:
    """Of a training step, so that its backward graph is seen; no gradient is kept."""
    results = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor) and one.requires_grad]
    sources = [*given, *(model.parameters() if isinstance(model, torch.nn.Module) else ())]
    wanted = [one for one in tree_leaves(sources) if isinstance(one, torch.Tensor) and one.requires_grad]
    if results and wanted:
        torch.autograd.grad(results, wanted, [torch.ones_like(one) for one in results], allow_unused=True)


def reports() -> list[ProgramReport]:
    """What has become so far of the programs that this process compiled and still has."""
    return [chosen.report for _, chosen in sorted(_programs.items())]


def recompile() -> None:
    """Forgets what was compiled in this process: the next calls look schedules up and weights at anew."""
    torch._dynamo.reset()
    schedules.forget_failures()
    allowance.forgive()
    _programs.clear()
    forget_warnings()


def _compiled(module: Any, inputs: Sequence[Any], options: Options, record: list[ProgramReport] | None) -> Run:
    if any(isinstance(one, (list, tuple, dict)) for one in inputs):
        # Compiled Autograd's graphs take a list; what is called with the flat one gets it in a list, too.
        flat = partial(_flat, options=options, record=record)
        nested: Run = flatten_graph_inputs(module, inputs, flat)
        return nested
    report = ProgramReport()
    if record is not None:
        record.append(report)
    elif not schedules.has_source(options) and options.on_miss != "default":
        report.reason = "there is no service and no local database"
        return _otherwise(module, inputs, options, report)
    eager = uncompiled(module, inputs)
    program = Program(options, report)
    steps = torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
    try:
        # The backward graph is built beside the program, too; and no buffers are donated, see program.py.
        backward = torch._functorch.config.patch(force_non_lazy_backward_lowering=True, donated_buffer=False)
        with backward, nullcontext() if steps else whole_operators():
            compiled = aot_autograd(
                fw_compiler=program.forward,
                bw_compiler=program.backward,
                inference_compiler=program.inference,
                decompositions=_faithful(for_training() if steps else inference_decompositions(), training=steps),
            )(module, inputs)
    except RestartAnalysis:
        raise
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
        warn_once("capture", f"a graph runs in eager mode: {error}")
        report.reason = f"AOTAutograd failed: {error}"
        return _otherwise(module, inputs, options, report)
    if isinstance(module, GmWrapper):
        boxed = compiled
        compiled = lambda *arguments: boxed(list(arguments))  # noqa: E731 - one line, one use
    patience_secs = float("inf") if record is not None else options.patience_secs
    chosen = Chosen(program, module, eager, compiled, inputs, patience_secs)
    if options.on_miss == "inductor" and not chosen.found_something():
        report.reason = "none of its schedules is there"
        return _otherwise(module, inputs, options, report)
    _programs[next(_numbers)] = chosen
    return chosen


def _faithful(decompositions: Mapping[Any, Any], *, training: bool) -> dict[Any, Any]:
    """Without those that change what a program computes.

    What draws random numbers would draw others; of attention, which may, rules of ours leave that whole. A cross entropy of
    what is no probability and negative indices of sums and copies are errors, which what they are taken apart into does not
    raise. Of attention on a CPU torch's decomposition gives the scores where the operator gives sums of exponentials, which
    the backward operator reads.
    """
    aten, seeded = torch.ops.aten, torch.Tag.nondeterministic_seeded
    kept = {
        op: rule
        for op, rule in decompositions.items()
        if seeded not in getattr(op, "tags", ()) or op in attention.DECOMPOSITIONS
    }
    raising = (aten.binary_cross_entropy, aten.binary_cross_entropy_backward, aten.index_add, aten.index_copy)
    for operator in raising:
        kept.pop(operator.default, None)
    if training:
        kept.pop(aten._scaled_dot_product_flash_attention_for_cpu.default, None)
    return kept


def _flat(module: Any, inputs: Sequence[Any], options: Options, record: list[ProgramReport] | None) -> Run:
    run = _compiled(module, inputs, options, record)
    return lambda arguments: run(*arguments)


def _otherwise(module: Any, inputs: Sequence[Any], options: Options, report: ProgramReport) -> Run:
    """The whole graph by inductor, if that is asked for, else as it is."""
    eager = uncompiled(module, inputs)
    report.runs = "eager"
    if options.on_miss != "inductor":
        return eager
    try:
        from torch._inductor.compile_fx import compile_fx

        compiled: Run = compile_fx(module, list(inputs))
    except RestartAnalysis:
        raise
    except Exception as error:  # noqa: BLE001 - inductor needs a compiler, and has bugs of its own
        warn_once("inductor", f"inductor failed, running in eager mode: {error}")
        return eager
    report.runs = "inductor"
    return compiled


capture_recurrent_layers(backend)
