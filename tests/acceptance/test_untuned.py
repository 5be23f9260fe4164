"""A model that nobody tuned runs its default schedules, each checked once: counted, never timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pitchpipe import sdk
from pitchpipe.cli.main import app
from pitchpipe.deploy import building
from pitchpipe.deploy.artifact import CompiledModel
from pitchpipe.deploy.identity import defaults_folder
from pitchpipe.sdk import load
from pitchpipe.wire.target import Target
from tests.compiler.models import attention, small_network

torch = pytest.importorskip("torch")


class Steps(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Tokens through an embedding and a recurrent layer, then a product and the largest place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = torch.nn.Embedding(50, 32), torch.nn.GRU(32, 32, batch_first=True)
        self.head = torch.nn.Linear(32, 48)

    def forward(self, tokens: Any) -> Any:
        scores = self.head(self.layer(self.embedding(tokens))[0])
        return scores, scores.argmax(-1), tokens * 3 - 1


@pytest.fixture(autouse=True)
def builds_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here they are what is looked at."""
    from pitchpipe.processes.child import run_step

    monkeypatch.setattr(building, "run_step", run_step)


def verdicts(cache: Path) -> dict[str, int]:
    """Files of verdicts on default schedules, and when each was written."""
    return {file.name: file.stat().st_mtime_ns for file in defaults_folder(cache).iterdir()}


def runs_defaults(model: CompiledModel) -> None:
    """All of its workloads, but those for which the baseline is the default."""
    manifest = model.manifest
    assert (manifest.tuned, dict(manifest.refused)) == ((), {})
    assert model.comparison.compared
    assert len(manifest.defaults) >= 0.8 * len(manifest.untuned)


def test_a_model_without_records_runs_its_default_schedules_and_the_next_build_checks_nothing(
    tmp_path: Path, this_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small_network().SerializeToString()
    runs_defaults(load(data, target=this_target, cache=tmp_path))
    first = verdicts(tmp_path)
    assert first
    # Without a linker the model is compiled in this process, with what is remembered.
    monkeypatch.setattr(sdk, "lacks_linker", lambda _: True)
    monkeypatch.setattr(sdk, "intact", lambda _: False)
    monkeypatch.setattr(sdk, "open_proved", _absent)
    runs_defaults(load(data, target=this_target, cache=tmp_path))
    assert verdicts(tmp_path) == first


def test_a_profile_without_a_service_or_a_database_is_of_the_default_schedules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    monkeypatch.setenv("PITCHPIPE_DATABASE_URL", f"sqlite:///{tmp_path}/absent.db")
    monkeypatch.setenv("PITCHPIPE_CACHE_DIR", str(tmp_path))
    file = tmp_path / "network.onnx"
    file.write_bytes(small_network().SerializeToString())
    told = CliRunner().invoke(app, ["profile", str(file), "--runs", "3", "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["kernels"]
    assert {kernel["tier"] for kernel in found["kernels"]} == {"none"}
    assert "default schedules" in told.stderr
    assert "PITCHPIPE_URL" in told.stderr


def _absent(*_: Any, **__: Any) -> Any:
    from pitchpipe.errors import NotFound

    raise NotFound("as if it had not been built")


@pytest.mark.long
@pytest.mark.parametrize("made", ["attention", "recurrent", "half precision"])
def test_so_do_models_of_other_kinds(made: str, tmp_path: Path, this_target: Target) -> None:
    torch.manual_seed(0)
    if made == "attention":
        model = load(attention().SerializeToString(), target=this_target, cache=tmp_path)
    elif made == "recurrent":
        tokens = torch.randint(0, 50, (2, 7))
        model = load(Steps().eval(), None, (tokens,), target=this_target, cache=tmp_path)
    else:
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU()).eval().bfloat16()
        model = load(module, None, (torch.randn(1, 3, 16, 16).bfloat16(),), target=this_target, cache=tmp_path)
    runs_defaults(model)
