"""A model that does not compute what its framework computes is refused wherever it would be used. Real processes.

The import is made wrong on purpose: one operator of the graph becomes another after the model was read.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.client import Client
from pitchpipe.deploy import building, identity, packs, signing, verify
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.deploy.packs import create_pack, open_pack
from pitchpipe.deploy.safe import FallbackWarning, load_safely
from pitchpipe.errors import WrongResult
from pitchpipe.model.local import LocalModel, local_model
from pitchpipe.model.reference import ModuleSource, NoSource
from pitchpipe.sdk import load, submit
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target
from tests.compiler import models

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Counting(nn.Module):
    """A layer, an activation, and all that a run of it might change: buffers, attributes, an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("offset", torch.full((16,), 0.25))
        self.runs = 0

    def forward(self, x: Any) -> Any:
        self.runs += 1
        return torch.relu(self.layer(x) + self.offset)


def made() -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Counting().eval(), (torch.randn(4, 16),)


def wrong(model: LocalModel) -> LocalModel:
    """What an importer with a bug would have made."""
    data = model.data.replace(b"relax.nn.relu", b"relax.tanh")
    assert data != model.data
    return replace(model, data=data)


@pytest.fixture(scope="module")
def default(this_target: Target) -> Schedules:
    """Schedules that leave every workload to the compiler: no service is needed."""
    return Schedules(target=this_target, response=LookupResponse(answers=()))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the operator's name: the framework is right here, and looking for a fault in it takes a minute."""
    monkeypatch.setattr(verify, "EXPLAIN_SECS", 1.0)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails whatever would build or try."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(building, "run_step", refuse)
    monkeypatch.setattr(building, "prove", refuse)


def test_a_module_is_compared_with_itself_in_eager_and_stays_as_it_was(
    default: Schedules, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = made()
    model = local_model(module, inputs)
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    state, runs, given = torch.get_rng_state(), module.runs, inputs[0].clone()
    compiled = load(model, default, cache=cache)
    assert compiled.comparison.compared, compiled.comparison
    assert str(compiled.comparison).startswith(f"compared with PyTorch {torch.__version__} on 3 input sets")
    assert torch.equal(torch.get_rng_state(), state)
    assert (module.runs, module.training) == (runs, False)
    assert torch.equal(inputs[0], given)
    assert all(torch.equal(value, kept[name]) for name, value in module.state_dict().items())
    monkeypatch.setattr(building, "prove", None)
    again = load(model, default, cache=cache)
    assert again.comparison == compiled.comparison


def test_a_library_that_was_tried_without_its_framework_is_compared_once_that_is_there(
    default: Schedules, tmp_path: Path
) -> None:
    module, inputs = made()
    model = local_model(module, inputs)
    alone = load(replace(model, source=NoSource(reason="its module is elsewhere")), default, cache=tmp_path)
    assert str(alone.comparison) == "not compared: its module is elsewhere"
    assert load(model, default, cache=tmp_path).comparison.compared


def test_a_wrong_import_is_not_loaded_now_or_later(default: Schedules, cache: Path, request: Any) -> None:
    model = wrong(local_model(*made()))
    told = rf"output 0 \(float32\[4, 16\]\) differs: .* compared with PyTorch {torch.__version__.split('+')[0]}"
    with pytest.raises(WrongResult, match=told):
        load(model, default, cache=cache)
    request.getfixturevalue("no_child")
    with pytest.raises(WrongResult, match=told):
        load(model, default, cache=cache)


class Traced(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if torch.compiler.is_exporting() else x


def test_a_module_that_is_another_one_when_it_is_traced_is_refused_for_that(default: Schedules, tmp_path: Path) -> None:
    model = local_model(Traced().eval(), (torch.randn(4, 16),))
    with pytest.raises(
        WrongResult, match=r"the program that torch\.export makes of the module differs from it in PyTorch"
    ):
        load(model, default, cache=tmp_path)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_has_no_export_to_differ_from() -> None:
    module, inputs = made()
    source = local_model(torch.jit.trace(module, inputs), inputs).source
    assert isinstance(source, ModuleSource)
    assert not source.unlike_its_export()


@pytest.mark.long
def test_a_machine_without_a_linker_compares_in_its_own_process(
    default: Schedules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    model = local_model(*made())
    assert load(model, default, cache=tmp_path / "cache").comparison.compared
    with pytest.raises(WrongResult, match="differs"):
        load(wrong(model), default, cache=tmp_path / "cache")


def test_load_safely_runs_the_fallback_for_a_wrong_import_and_says_so_once(default: Schedules, tmp_path: Path) -> None:
    module, inputs = made()
    model = wrong(local_model(module, inputs))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        safe = load_safely(
            model,
            fallback=lambda x: module(torch.as_tensor(x)),
            schedules=default,
            deadline_secs=120.0,
            cache=tmp_path,
        )
        assert safe.compiled is None
        for _ in range(2):
            np.testing.assert_array_equal(safe(inputs[0].numpy()), module(inputs[0]).detach().numpy())
    told = [str(one.message) for one in caught if one.category is FallbackWarning]
    assert len(told) == 1
    assert "does not compute what its framework computes" in told[0]
    assert "output 0" in told[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["module", "file"])
def test_load_safely_compares_what_it_builds_beside_the_program(default: Schedules, tmp_path: Path, kind: str) -> None:
    model = local_model(*made()) if kind == "module" else local_model(models.tiny_network().SerializeToString())
    safe = load_safely(model, fallback=lambda x: x, schedules=default, deadline_secs=120.0, cache=tmp_path)
    assert safe.compiled is not None, safe.reason
    told = safe.compiled.comparison
    assert told.compared, told
    assert (told.reference or "").startswith("PyTorch" if kind == "module" else "ONNX Runtime")


def test_a_wrong_import_is_not_submitted_and_a_right_one_says_what_it_was_compared_with(
    embedded: Client, this_target: Target, cache: Path
) -> None:
    model = local_model(*made())
    before = {view.id for view in embedded.models()}
    with pytest.raises(WrongResult, match="output 0"):
        submit(wrong(model), target=this_target, trials=0, client=embedded, cache=cache)
    assert {view.id for view in embedded.models()} == before
    job = submit(model, target=this_target, trials=0, client=embedded, cache=cache)
    assert job.comparison is not None
    assert (job.comparison.reference or "").startswith("PyTorch")
    assert embedded.model(job.model).comparison == job.comparison
    unasked = submit(wrong(model), target=this_target, trials=0, client=embedded, cache=cache, compare=False)
    assert str(unasked.comparison) == "not compared: it was asked not to"


_TUNE = """
import sys
from dataclasses import replace
from pitchpipe.cli import main, tune
from pitchpipe.deploy import verify

verify.EXPLAIN_SECS = 1.0
read = tune.read_model

def wrongly(*arguments, **options):
    model = read(*arguments, **options)
    return replace(model, data=model.data.replace(b"Relu", b"Tanh"))

tune.read_model = wrongly
main.main(sys.argv[1:])
"""


def test_tune_ends_with_1_and_no_table_for_a_wrong_import(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(models.tiny_network().SerializeToString())
    options = ["--trials", "0", "--database", f"sqlite:///{tmp_path}/p.db"]
    ended = subprocess.run(
        [sys.executable, "-c", _TUNE, "tune", str(path), *options], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert "does not compute what its framework computes: output 0" in ended.stderr
    assert "compared with ONNX Runtime" in ended.stderr


@pytest.fixture
def pack(default: Schedules, cache: Path, tmp_path: Path) -> Callable[[LocalModel], Any]:
    signing.create_keys(tmp_path / "key.pem")

    def make(model: LocalModel) -> Any:
        path = tmp_path / "model.pitchpack"
        create_pack(path, default, tmp_path / "key.pem", model=model, cache=cache)
        return open_pack(path, trusted=[tmp_path / "key.pem.pub"])

    return make


def test_a_pack_carries_what_its_library_is_compared_with_elsewhere(
    pack: Callable[[LocalModel], Any], tmp_path: Path
) -> None:
    model = local_model(*made())
    opened = pack(model)
    assert opened.manifest.version == 2
    assert opened.manifest.comparison.compared
    elsewhere = replace(model, source=NoSource())
    told = load(elsewhere, opened, cache=tmp_path / "elsewhere").comparison
    assert str(told).startswith("compared with PyTorch")
    assert told.input_sets == 1
    others = replace(elsewhere, weights={name: values + 1 for name, values in model.weights.items()})
    assert not load(others, opened, cache=tmp_path / "other weights").comparison.compared


def test_a_wrong_library_does_not_get_into_a_pack_and_is_refused_where_one_did(
    pack: Callable[[LocalModel], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wrong(local_model(*made()))
    with pytest.raises(WrongResult):
        pack(model)
    unproved = building.make
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(packs, "make", lambda spec, _cache, **_: unproved(spec, tmp_path / "other"))
    opened = pack(model)
    assert opened.manifest.comparison is None
    with pytest.raises(WrongResult, match="compared with PyTorch"):
        load(replace(model, source=NoSource()), opened, cache=tmp_path / "elsewhere")


def test_a_pack_of_the_first_version_still_opens_and_was_not_compared(
    pack: Callable[[LocalModel], Any], tmp_path: Path
) -> None:
    model = replace(local_model(*made()), source=NoSource(reason="nothing came along"))
    opened = pack(model)
    assert opened.manifest.version == 1
    assert {"weights", "comparison"}.isdisjoint(opened.path.read_bytes().decode("latin-1").split('"'))
    assert str(load(model, opened, cache=tmp_path / "elsewhere").comparison) == "not compared: nothing came along"


def test_what_was_made_before_a_change_of_the_code_is_not_used_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "tuner"
    (folder / "ingest").mkdir(parents=True)
    (folder / "graph.py").write_text("a = 1\n")
    (folder / "ingest" / "onnx_reader.py").write_text("b = 1\n")
    digests = [identity.code_digest([folder])]
    (folder / "ingest" / "onnx_reader.py").write_text("b = 2\n")
    digests.append(identity.code_digest([folder]))
    (folder / "ingest" / "onnx_reader.py").rename(folder / "ingest" / "reader.py")
    digests.append(identity.code_digest([folder]))
    (folder / "notes.txt").write_text("no code")
    assert len(set(digests)) == 3
    assert identity.code_digest([folder]) == digests[-1]
