"""From the graphs that AOTAutograd gives to graphs whose partitions run compiled code.

A Program is one graph that Dynamo captured: one graph of an inference, or the forward and the backward graph of a training
step. Whether it is used at all is decided by a duel with the graph as Dynamo captured it, on the first call's own tensors.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._guards import TracingContext

from pitchpipe.artifact import cache_dir
from pitchpipe.building import Recipe
from pitchpipe.errors import InvalidInput
from pitchpipe.identity import Identity, identify, known_identity, machine_key, read_json, write_json
from pitchpipe.plugins import step
from pitchpipe.torch_backend import duel, misses
from pitchpipe.torch_backend.dynamic import Sizes
from pitchpipe.torch_backend.options import Options
from pitchpipe.torch_backend.part import Part
from pitchpipe.torch_backend.partition import Split, is_static, name_of, split, tensors_of
from pitchpipe.torch_backend.report import GraphReport, PartitionReport, ProgramReport
from pitchpipe.torch_backend.schedules import Found, Wanted, find, is_silent
from pitchpipe.torch_backend.threads import run_small_ones_alone
from pitchpipe.torch_backend.warning import warn_once
from pitchpipe.tune import LocalModel
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.record import Tier
from pitchpipe.wire.target import Target

Run = Callable[..., Any]


@dataclass(kw_only=True)
class _Planned:
    """A partition on its way: what is missing stays None, and `reason` says why."""

    name: str
    eager: Any
    weights: Collection[str]
    report: PartitionReport
    model: LocalModel | None = None
    identity: Identity | None = None
    reason: str = ""


class Program:
    """Compilers for AOTAutograd, one for each kind of graph. They raise nothing: what fails stays with PyTorch."""

    def __init__(self, options: Options, report: ProgramReport) -> None:
        self.options, self.report = options, report
        self.parts: list[Part] = []
        self.random = False
        """Whether it draws random numbers: its results are then no two times the same."""
        self.mutated: frozenset[int] = frozenset()
        """Which of its flat arguments it writes into."""
        self.deferred = False
        """Whether sizes are symbolic: what it is made of is known when they occur."""
        self.arguments = 0
        """How many it has."""
        self._static: frozenset[int] = frozenset()
        self._stepping = False

    def inference(self, module: Any, _inputs: Sequence[Any]) -> Run:
        return self._compiled(module, "inference", self._first(module))

    def forward(self, module: Any, _inputs: Sequence[Any]) -> Run:
        self._stepping = True
        return self._compiled(module, "forward", self._first(module))

    def backward(self, module: Any, _inputs: Sequence[Any]) -> Run:
        # AOTAutograd calls what it saves of the forward's arguments by their places there.
        names = {f"primals_{at + 1}" for at in self._static}
        return self._compiled(module, "backward", {node.name for node in _placeholders(module)} & names)

    @property
    def covered(self) -> bool:
        """Whether any part of it may run compiled code of ours."""
        return any(part.compiled for part in self.parts)

    def _first(self, module: Any) -> set[str]:
        """Reads what is known of the arguments; the names of those that hold weights."""
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        placeholders = _placeholders(module)
        self.arguments = len(placeholders)
        if metadata is not None:
            self._static = frozenset(metadata.static_input_indices)
            self.mutated = frozenset(metadata.mutated_inp_runtime_indices)
        return {node.name for at, node in enumerate(placeholders) if at in self._static}

    def _compiled(self, module: Any, kind: str, weights: Collection[str]) -> Run:
        self.random |= any(
            torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in module.graph.nodes
        )
        run: Run = module.forward
        try:
            if is_static(module):
                run = self.fixed(module, kind, weights, {}).forward
            else:
                at = [index for index, node in enumerate(_placeholders(module)) if node.name in weights]

                def build(one: Any, sizes: dict[str, int]) -> Any:
                    placeholders = _placeholders(one)
                    return self.fixed(one, kind, {placeholders[index].name for index in at}, sizes)

                run, self.deferred = Sizes(module, build), True
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            warn_once(f"compile {kind}", f"a graph runs in eager mode: {error}")
        return _boxed(run)

    def fixed(self, module: Any, kind: str, weights: Collection[str], sizes: dict[str, int]) -> Any:
        """The graph module, changed: its partitions are Parts. All shapes are known; `sizes` says what was fixed."""
        told = GraphReport(kind=kind, sizes=sizes)
        self.report.graphs.append(told)
        given, _ = tensors_of(module)
        device = next((one.device for one in given if isinstance(one, torch.Tensor)), torch.device("cpu"))
        unsupported = step("unsupported_fx")

        def reason(node: Any) -> str | None:
            found: str | None = unsupported(node)
            return found if found is not None else _elsewhere(node, device)

        cut = split(module, weights, reason)
        told.operators, told.left = cut.operators, cut.left
        planned = [self._planned(cut, name) for name in cut.weights]
        told.partitions = [one.report for one in planned]
        away = is_silent(self.options.url) and self.options.on_miss != "default"
        target = _target(self.options, device, ask=not away) if planned else None
        if target is None:
            for one in planned:
                one.report.runs, one.report.reason = "eager", "the service is away"
            return cut.module
        self._identify(planned, target, ask=not away)
        known = [one for one in planned if one.identity is not None]
        found = Found(source="nobody")
        if known:
            wanted = Wanted(
                target=target,
                models=[one.model for one in known if one.model is not None],
                identities=[one.identity for one in known if one.identity is not None],
            )
            found = find(wanted, self.options)
            misses.report(wanted, found, self.options)
        told.source = f"schedules of {found.source}"
        alone = len(planned) == 1 and not cut.left and not sizes and kind == "inference"
        for one in planned:
            part = self._part(one, found, target, device, alone)
            self.parts.append(part)
            setattr(cut.module, one.name, part)
        if any(part.compiled for part in self.parts):
            run_small_ones_alone(cut.module)
        return cut.module

    def _planned(self, cut: Split, name: str) -> _Planned:
        eager, weights = cut.module.get_submodule(name), cut.weights[name]
        operators = sum(node.op == "call_function" for node in eager.graph.nodes)
        found = _Planned(
            name=name, eager=eager, weights=weights, report=PartitionReport(name=name, operators=operators)
        )
        try:
            data = step("export_fx")(eager, weights)
            found.model = LocalModel(name="partition", format=ModelFormat.RELAX, data=data, weights={})
        except Exception as error:  # noqa: BLE001 - importers raise whatever they met
            found.reason = f"it cannot be converted: {error}"
        return found

    @staticmethod
    def _identify(planned: Sequence[_Planned], target: Target, *, ask: bool) -> None:
        """Reads from the cache, or asks children, two at a time."""

        def one(found: _Planned) -> None:
            if found.model is None:
                return
            try:
                kept = known_identity(cache_dir(), found.model, target)
                found.identity = identify(cache_dir(), found.model, target) if ask and kept is None else kept
                found.reason = "" if found.identity is not None else "the service is away"
            except Exception as error:  # noqa: BLE001 - the child may have crashed
                found.reason = f"it cannot be prepared: {error}"

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, planned))

    def _part(self, one: _Planned, found: Found, target: Target, device: Any, alone: bool) -> Part:
        options, recipe = self.options, None
        if one.identity is not None and one.model is not None:
            answers = {w: found.answers[w] for w in one.identity.workloads if w in found.answers}
            used = {w: answer.best for w, answer in answers.items() if answer.best and options.accepts(answer.tier)}
            one.report.workloads = len(one.identity.workloads)
            for workload in one.identity.workloads:
                tier = answers[workload].tier if workload in answers else Tier.NONE
                one.report.tiers[tier] = one.report.tiers.get(tier, 0) + 1
            if len(used) == len(one.identity.workloads):
                one.report.expected_secs = sum(best.secs * one.identity.weights[w] for w, best in used.items())
            if used or options.on_miss == "default":
                traces = {workload: best.trace for workload, best in used.items()}
                graphs = options.cuda_graphs and target.kind == "cuda"
                recipe = Recipe(model=one.model, target=target, traces=traces, cuda_graphs=graphs)
            else:
                one.reason = f"none of its schedules is there: {found.source}"
        one.report.reason = one.reason
        _, results = tensors_of(one.eager)
        names = [node.name for node in _placeholders(one.eager)]
        return Part(
            one.eager,
            recipe,
            one.report,
            is_weight=[name in one.weights for name in names],
            results=results,
            device=device,
            training=self._stepping,
            alone=alone,
            otherwise="inductor" if options.on_miss == "inductor" else "eager",
        )


class Chosen:
    """What Dynamo calls: the compiled program, or the graph as it was captured, once their duel has decided."""

    def __init__(self, program: Program, captured: Any, compiled: Run) -> None:
        self._program, self._captured, self._compiled = program, captured, compiled
        self._run: Run | None = None
        self._deciding = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        if self._run is None:
            with self._deciding:
                if self._run is None:
                    self._run = self._decided(arguments)
        return self._run(*arguments)

    def _decided(self, arguments: Sequence[Any]) -> Run:
        try:
            verdict = self._verdict(arguments)
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            warn_once("duel", f"the model runs in eager mode: {error}")
            verdict = duel.Verdict(use=False, reason=str(error))
        report = self._program.report
        report.runs, report.reason = "pitchpipe" if verdict.use else "eager", verdict.reason
        report.secs, report.eager_secs = verdict.secs, verdict.eager_secs
        captured: Any = self._captured
        return self._guarded if verdict.use else captured.forward

    def _verdict(self, arguments: Sequence[Any]) -> duel.Verdict:
        program = self._program
        keys = sorted(part.recipe.key for part in program.parts if part.recipe is not None)
        types = [_type_text(one) for one in arguments]
        code = sha256(getattr(self._captured, "gm", self._captured).code.encode())
        file = duel.verdict_file(cache_dir(), "program", code, types, torch.is_grad_enabled(), keys)
        try:
            if program.deferred:  # its partitions, which a verdict is about, are not known yet
                return self._tried(arguments)
            verdict = duel.settled(file, lambda: self._tried(arguments))
        except _NothingCompiled as error:  # no verdict to keep: a later process may have more
            return duel.Verdict(use=False, reason=str(error))
        if not verdict.use and verdict.eager_secs is None and program.covered:
            warn_once(code, f"the model runs in eager mode: {verdict.reason}")
        return verdict

    def _tried(self, arguments: Sequence[Any]) -> duel.Verdict:
        program, rehearsal = self._program, _Rehearsal(self._program, arguments)
        with compiled_autograd._disable(), torch.random.fork_rng(_gpus()):
            rehearsal(self._compiled)  # decides the partitions and, of a training step, compiles the backward graph
            if not any(part.compiled for part in program.parts):
                reasons = {part.report.reason for part in program.parts if part.report.reason}
                raise _NothingCompiled("; ".join(sorted(reasons)) or "no part of it is compiled")
            return duel.duel(
                lambda: rehearsal(self._compiled),
                lambda: rehearsal(self._captured),
                compare=not program.random,
                nudged=(lambda: rehearsal.nudged()(self._captured)) if rehearsal.stepping else None,
            )

    def _guarded(self, *arguments: Any) -> Any:
        try:
            return self._compiled(*arguments)
        except Exception as error:  # noqa: BLE001 - the program's own error is raised again by the captured graph
            found = self._captured(*arguments)
            warn_once("run", f"the model goes on in eager mode: {error}")
            self._run = self._captured
            return found


class _NothingCompiled(Exception):
    """There is nothing to try; the message says why."""


class _Rehearsal:
    """Runs a program's forward, and its backward where there is one, with nothing left behind."""

    def __init__(self, program: Program, arguments: Sequence[Any]) -> None:
        self._program = program
        first = program.arguments - len(arguments)
        self.stepping = torch.is_grad_enabled() and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in arguments
        )
        self._arguments: list[Any] = []
        for at, one in enumerate(arguments):
            if isinstance(one, torch.Tensor):
                wants, written = one.requires_grad, at + first in program.mutated
                one = one.detach().clone() if written else one.detach()
                one = one.requires_grad_() if wants and self.stepping else one
            self._arguments.append(one)
        self._tangents: list[Any] | None = None

    def __call__(self, run: Run) -> list[Any]:
        torch.manual_seed(0)
        if not self.stepping:
            return list(run(*self._arguments))
        for part in self._program.parts:
            part.forget_weights()
        results = list(run(*self._arguments))
        differentiable = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
        wanted = [one for one in self._arguments if isinstance(one, torch.Tensor) and one.requires_grad]
        if self._tangents is None:
            self._tangents = [torch.randn_like(one) for one in differentiable]
        gradients = torch.autograd.grad(differentiable, wanted, self._tangents, allow_unused=True)
        return [one.detach() if isinstance(one, torch.Tensor) else one for one in (*results, *gradients)]

    def nudged(self) -> _Rehearsal:
        """The same with arguments that differ by rounding, and the same gradients of its results."""
        found = copy.copy(self)
        found._arguments = [
            (one.detach() * (1 + duel.NUDGE * torch.randn_like(one))).requires_grad_(one.requires_grad)
            if isinstance(one, torch.Tensor) and one.is_floating_point()
            else one
            for one in self._arguments
        ]
        return found


def _placeholders(module: Any) -> list[Any]:
    return list(module.graph.find_nodes(op="placeholder"))


def _boxed(run: Run) -> Run:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    boxed: Run = make_boxed_func(run)
    return boxed


def _gpus() -> list[int]:
    """All whose random state a seed would change."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def _type_text(one: Any) -> str:
    if isinstance(one, torch.Tensor):
        return f"{one.dtype}{list(one.shape)}{one.device}{one.requires_grad}"
    return type(one).__name__


def _elsewhere(node: Any, device: Any) -> str | None:
    for one in (node, *node.all_input_nodes):
        value = one.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device != device:
            return f"{name_of(node)} has tensors on {value.device} and {device}"
    return None


def _target(options: Options, device: Any, *, ask: bool) -> Target | None:
    """The target for tensors on a device; None if a child would have to be asked and may not be.

    Raises InvalidInput for an option of another kind.
    """
    kind = {"cpu": "llvm", "cuda": "cuda"}.get(device.type)
    if kind is None:
        raise InvalidInput(f"no target for tensors on {device}")
    if options.target is not None:
        if options.target.kind != kind:
            raise InvalidInput(f"the target is of kind {options.target.kind}, the tensors are on {device}")
        return options.target
    file = cache_dir() / "targets" / f"{machine_key()}-{kind}.json"
    found = read_json(file, Target)
    if found is None and ask:
        found = step("detect_target")(kind)
        write_json(file, found)
    return found
