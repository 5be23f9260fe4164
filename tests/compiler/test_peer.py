"""A file's framework as its users run it: in a process of its own that computes when it is asked to, and in turns."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from pitchpipe.model.interleaved import WARM_RUNS, interleaved
from pitchpipe.model.local import local_model
from pitchpipe.model.reference import CannotRun, FileSource
from pitchpipe.model.reference.peer import Peer
from tests.compiler import models

torch = pytest.importorskip("torch")


def asked(path: Path, *, trust: bool = False) -> tuple[Path, list[np.ndarray]]:
    """What the process needs, and inputs."""
    source = local_model(path, trust=trust).source
    assert isinstance(source, FileSource)
    inputs = list(source.expected({}).inputs[0])
    folder = path.with_suffix(".asked")
    source.ask(folder, {}, most=1)
    return folder, inputs


def onnx_file(folder: Path) -> Path:
    path = folder / "small.onnx"
    path.write_bytes(models.small_network().SerializeToString())
    return path


def test_onnx_runtime_is_the_peer_of_an_onnx_file_and_is_stopped_between_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer(*asked(onnx_file(tmp_path))) as peer:
        assert peer.name.startswith("ONNX Runtime 1.")
        told: list[int] = []
        send = peer._process.send_signal
        monkeypatch.setattr(peer._process, "send_signal", lambda number: (told.append(number), send(number)))
        for runs in (3, 1):
            assert len(found := peer.secs(runs)) == runs
            assert min(found) > 0
        assert told == [signal.SIGCONT, signal.SIGSTOP] * 2
    assert peer._process.returncode is not None


@pytest.mark.long
def test_eager_mode_is_the_peer_of_an_exported_module(tmp_path: Path) -> None:
    path = tmp_path / "small.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),)), path)
    with Peer(*asked(path, trust=True)) as peer:
        assert peer.name.startswith("eager PyTorch")
        assert min(peer.secs(2)) > 0


def test_where_the_framework_is_not_installed_or_ends_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, inputs = asked(onnx_file(tmp_path))
    with Peer(folder, inputs) as peer:
        peer._process.kill()
        peer._process.wait()
        with pytest.raises(CannotRun, match="ended"):
            peer.secs(1)
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('hidden', name='onnxruntime')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CannotRun, match="onnxruntime is not installed"):
        Peer(folder, inputs)


def test_sides_take_turns_forwards_and_backwards_and_their_first_runs_do_not_count() -> None:
    turns: list[str] = []
    now = 0.0

    def side(name: str, secs: float) -> list[float]:
        def run(runs: int) -> list[float]:
            nonlocal now
            turns.append(name)
            now += runs * secs
            return [9.0] * WARM_RUNS + [secs] * (runs - WARM_RUNS)

        return run

    found = interleaved([side("a", 0.5), side("b", 0.25), side("c", 1.0)], clock=lambda: now)
    assert found == [0.5, 0.25, 1.0]
    assert "".join(turns) == "abc" + "abc" + "cba"
