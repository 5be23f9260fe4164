"""Sums that are divided among blocks, on a real GPU: every way of adding the parts gives the same, in every replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pitchpipe.gpu.executable import GpuModel  # noqa: E402
from pitchpipe.target_kind import kind_named, kind_of  # noqa: E402
from pitchpipe.wire.target import Target  # noqa: E402
from pitchpipe.wire.task import Workload  # noqa: E402
from tests.acceptance.test_gpu_runtime import Encoder  # noqa: E402
from tuner.deploy.build import schedule_model, workload_functions  # noqa: E402
from tuner.deploy.gpu_model import assemble_checked, compile_functions, settled_flow  # noqa: E402
from tuner.deploy.joining import join_calls  # noqa: E402
from tuner.graph.prepare import prepare, workload_module  # noqa: E402
from tuner.ingest import IngestedModel, parse_container  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.templates.text import parse  # noqa: E402
from tuner.tvm_compat import load_ir, save_ir  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(600),
]
REPLAYS = 3


def divided(model: IngestedModel, target: Target, cluster: int) -> dict[str, str]:
    """Of each workload the best point by the estimate that divides a sum and adds its parts so; else the best one."""
    texts = {}
    for _, function, digest in workload_functions(prepare(load_ir(model.ir), target)):
        workload = Workload(digest=digest, ir=save_ir(workload_module(function)))
        points = [one.text for one in kind_of(target).templates(workload, target)]
        told = {text: parse(text).arguments for text in points}
        fitting = [text for text in points if told[text].get("parts", 1) > 1 and told[text]["cluster"] == cluster]
        if points:
            texts[digest] = (fitting or points)[0]
    return texts


def program_of(model: IngestedModel, target: Target, *, cluster: int, joined: bool) -> Any:
    flow, functions = settled_flow(schedule_model(model, target, divided(model, target, cluster)).module, target)
    if joined:
        join_calls(flow, functions)
    used = {step.function for step in (*flow.prepare, *flow.run)}
    return assemble_checked(flow, *compile_functions({name: functions[name] for name in used}, target))


def test_all_ways_of_adding_parts_give_the_same_bits_in_every_replay() -> None:
    target = kind_named("cuda").detect()
    assert target is not None
    torch.manual_seed(0)
    module, x = Encoder(width=768, heads=12).half().eval(), torch.randn(1, 128, 768).half()
    model = parse_container(from_torch(module, (x,))[0])
    weights = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    with torch.no_grad():
        wanted = module.cuda()(x.cuda()).float().cpu().numpy()
    counts, results = {}, {}
    for cluster, joined in ((0, False), (0, True), (1, False), (1, True)):
        program = program_of(model, target, cluster=cluster, joined=joined)
        counts[cluster, joined] = len(program.run)
        runs = GpuModel(program, model.inputs, model.params)
        runs.bind(weights)
        found = [np.asarray(runs(x.numpy())) for _ in range(REPLAYS)]
        assert all((one == found[0]).all() for one in found)
        np.testing.assert_allclose(found[0].astype(np.float32), wanted, rtol=0, atol=2e-2 * float(np.abs(wanted).max()))
        results[cluster, joined] = found[0]
    for cluster in (0, 1):
        assert (results[cluster, False] == results[cluster, True]).all()
    assert counts[0, False] > counts[0, True]
    assert counts[0, False] > counts[1, False]
