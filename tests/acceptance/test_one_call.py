"""`pitchpipe.tune` as a user calls it: a module's own arguments and results, ONNX in memory, Ctrl-C. Real processes, SQLite."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pitchpipe
from pitchpipe.client import Client
from pitchpipe.deploy.building import BuildSpec
from pitchpipe.errors import InvalidInput
from pitchpipe.model import interleaved
from pitchpipe.tuning.tuned import Variant
from pitchpipe.wire.job import JobState
from tests.compiler import models
from tests.patience import PATIENCE_SECS

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

TRIALS = 8


class Nested(nn.Module):
    """Takes a dict, a list and a keyword; gives a dict with a tuple, a number and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, 96), nn.Linear(96, 48)
        self.scale = nn.Parameter(torch.tensor([2.0]))  # a single number, which a build has as a constant
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, pair: Any, more: Any, *, mask: Any = None) -> Any:
        hidden = torch.relu(self.first(pair["left"] - pair["right"]))
        out = torch.softmax(self.second(hidden) * self.scale, -1)
        return {"out": out if mask is None else out * mask, "rest": (hidden, more[0] + 1), "count": 3, "none": None}


def made(rows: int = 8) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    pair = {"left": torch.randn(rows, 48), "right": torch.randn(rows, 48)}
    return Nested().eval(), (pair, [torch.arange(4)]), {"mask": torch.rand(rows, 48)}


def state(module: Any) -> list[Any]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return [
        module.training,
        *((name, one._version, one.requires_grad, one.device, one.data_ptr()) for name, one in named),
    ]


def close(found: Any, expected: Any) -> None:
    assert type(found) is dict
    assert list(found) == list(expected)
    assert (found["count"], found["none"], type(found["rest"])) == (3, None, tuple)
    torch.testing.assert_close(found["out"], expected["out"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["rest"], expected["rest"], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", autouse=True)
def timed_briefly() -> Iterator[None]:
    """No test asks which side is faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaved, "TIMING_SECS", 0.2)
        yield


@pytest.fixture(scope="module")
def tuned(embedded: Client) -> tuple[Any, Any]:
    """A module and what was made of it, for four and for eight rows; the module is as it was."""
    module, arguments, keywords = made()
    before = state(module)
    fast = pitchpipe.tune(module, arguments, keywords, trials=TRIALS, batch=(4, 8), client=embedded, progress=False)
    assert state(module) == before
    return module, fast


def compiled(fast: Any) -> Variant:
    """The variant of eight rows, whose build runs, whichever was faster on this busy machine."""
    variant = fast._variants[-1]
    if variant.build is None:
        target = variant.schedules.target
        spec = BuildSpec(model=variant.subject.model, target=target, traces=variant.schedules.traces)
        variant = replace(variant, build=variant.subject.open(spec.folder(fast._cache), target))
        fast._variants = (*fast._variants[:-1], variant)
    return variant


def test_a_tuned_module_takes_and_gives_what_the_module_does(tuned: Any) -> None:
    module, fast = tuned
    build = compiled(fast).build
    _, (pair, more), keywords = made()
    pair = {"left": pair["right"] * 3, "right": pair["left"]}  # not the examples
    with torch.no_grad():
        expected = module(pair, more, **keywords)
    assert compiled(fast).subject.taken_apart(((pair, more), keywords)) is not None
    close(fast(pair, more, **keywords), expected)
    close(fast(pair=pair, mask=keywords["mask"], more=more), expected)
    with torch.no_grad():
        module.first.weight.mul_(0.5)
        close(fast(pair, more, **keywords), module(pair, more, **keywords))
    assert build is not None
    assert build.is_current


def test_a_batch_between_the_tuned_ones_is_padded(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, fast = tuned
    last = compiled(fast)
    _, (pair, more), keywords = made(rows=5)
    padded = fast._padded
    monkeypatch.setattr(padded, "is_faster", lambda *_: True)
    monkeypatch.setattr(padded, "_batches", (padded._batches[0], replace(padded._batches[1], build=last.build)))
    with torch.no_grad():
        expected = module(pair, more, **keywords)
    close(padded((pair, more), keywords), expected)
    close(fast(pair, more, **keywords), expected)
    _, (pair, more), keywords = made(rows=9)
    assert padded((pair, more), keywords) is None


def test_calls_that_no_build_fits_run_the_module(tuned: Any) -> None:
    module, fast = tuned
    assert compiled(fast).build is not None
    _, (pair, more), keywords = made(rows=9)
    close(fast(pair, more, **keywords), module(pair, more, **keywords))
    _, (pair, more), keywords = made()
    pair["left"].requires_grad_()
    fast(pair, more, **keywords)["out"].square().sum().backward()
    assert pair["left"].grad is not None
    with pytest.raises(TypeError):
        fast(pair)


def test_what_a_build_has_as_a_constant_is_watched(tuned: Any) -> None:
    module, fast = tuned
    build = compiled(fast).build
    _, arguments, keywords = made()
    with torch.no_grad():
        module.scale.add_(1.0)
        assert build is not None
        assert not build.is_current
        close(fast(*arguments, **keywords), module(*arguments, **keywords))


def test_the_report_has_three_figures_and_every_task(tuned: Any) -> None:
    first, report = tuned[1].reports
    assert report is tuned[1].report
    assert first.job != report.job
    assert report.trials == sum(task.trials for task in report.tasks)
    assert report.figures.peer.startswith("eager PyTorch")
    assert min(report.figures.default_secs, report.figures.tuned_secs, report.figures.peer_secs) > 0
    assert sum(task.share for task in report.tasks) == pytest.approx(1.0)
    assert all(task.gain > 0 for task in report.tasks)
    assert report.comparison.compared
    assert report.tasks[0].name in str(report)


def test_what_was_saved_is_a_signed_pack(tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    module, fast = tuned
    fast.save(tmp_path / "net.pitchpipe")
    pack = pitchpipe.open_pack(tmp_path / "net.pitchpipe")
    _, (pair, more), keywords = made()
    loaded = pack.load(module.state_dict())
    found = loaded(pair["left"], pair["right"], more[0], keywords["mask"])
    with torch.no_grad():
        expected = module(pair, more, **keywords)  # whose weights and constants are others than when it was tuned
    np.testing.assert_allclose(found[0], expected["out"].numpy(), rtol=1e-3, atol=1e-4)


def test_ctrl_c_keeps_what_was_measured_and_gives_the_best_so_far(embedded: Client) -> None:
    """Of an ONNX model in memory, whose peer is ONNX Runtime."""
    network = models.tiny_network()
    known = {job.id for job in embedded.jobs()}
    main = threading.get_ident()

    def interrupt() -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            new = [job for job in embedded.jobs() if job.id not in known]
            if new and new[0].progress.trials:
                signal.pthread_kill(main, signal.SIGINT)
                return
            time.sleep(0.1)

    watcher = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        watcher.start()
        fast = pitchpipe.tune(network, trials=100_000, client=embedded, progress=False)
        watcher.join()
    finally:
        signal.signal(signal.SIGINT, before)
    report = fast.report
    assert report.interrupted
    assert 0 < report.trials < 100_000
    assert any(task.trials for task in report.tasks)
    assert report.figures.peer.startswith("ONNX Runtime")
    ended = [job.state for job in embedded.jobs() if job.id not in known]
    assert sorted(ended) == [JobState.CANCELLED, JobState.DONE]
    shapes = [[int(d.dim_value) for d in value.type.tensor_type.shape.dim] for value in network.graph.input]
    tensors = [torch.zeros(shapes[0])]
    assert isinstance(fast(*tensors), torch.Tensor)
    assert isinstance(fast(*(one.numpy() for one in tensors)), np.ndarray)
    with pytest.raises(InvalidInput):
        fast(torch.zeros(1, 1))


def test_what_cannot_be_tuned_says_what_to_do() -> None:
    module, arguments, keywords = made()
    with pytest.raises(InvalidInput, match=r"pitchpipe.tune\(module, \(x,\)\)"):
        pitchpipe.tune(module)
    with pytest.raises(InvalidInput, match="eval"):
        pitchpipe.tune(module.train(), arguments, keywords)
    with pytest.raises(InvalidInput, match="range of batches"):
        pitchpipe.tune(os.devnull, batch=(1, 4))
