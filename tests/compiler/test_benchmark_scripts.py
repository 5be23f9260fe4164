"""The benchmarks as scripts that anybody can start: what they import is there, and they bring their models along."""

from __future__ import annotations

import ast
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pitchpipe.processes.cores import usable_cores
from tests.compiler.programs import TARGET
from tuner.search import evolution

FOLDER = Path(__file__).parents[2] / "benchmarks"
OURS = ("pitchpipe", "tuner", "service", "workers", "tests")
STOCK_SECS = 20.0
"""TVM is imported, the model is split into tasks, and the first candidates are made."""
SCRIPTS = sorted(FOLDER.rglob("*.py"))

sys.path.insert(0, str(FOLDER))
try:
    import environment
    import model_tuning
    import replay_search
finally:
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(FOLDER)))
def test_what_a_benchmark_imports_of_ours_is_there(script: Path) -> None:
    """Imports inside functions too, which a run meets late."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            module = import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    import_module(f"{node.module}.{name.name}")


def test_scripts_of_models_run_ten_unless_they_are_told_others() -> None:
    pytest.importorskip("transformers")
    path = environment.models_parser(None).parse_args([]).models
    assert list(runpy.run_path(str(path))["MODELS"]) == [
        *("resnet18", "resnet50", "mobilenet_v2", "bert_base_s128", "vit_b16"),
        *("convnext_tiny", "swin_tiny", "distilbert_s64", "gpt2_prefill_s64", "llama_decode_c256"),
    ]


def test_a_program_of_a_benchmark_has_as_many_threads_as_cores_unless_it_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    environment.parser(None)
    assert environment.kernel_threads() == 7
    monkeypatch.delenv("TVM_NUM_THREADS")
    environment.parser(None)
    assert os.environ["TVM_NUM_THREADS"] == str(usable_cores())


def test_a_replayed_search_has_the_shares_of_a_search() -> None:
    for name in ("ANALYTIC_SHARE", "EPSILON", "RANDOM_RATIO", "MAX_TIES"):
        assert getattr(replay_search, name) == getattr(evolution, name)
    assert replay_search.CHILDREN_SHARE == 1 - evolution.RANDOM_SHARE
    assert replay_search.CHILDREN_RATIO == evolution.GENERATIONS * evolution.CHILDREN_RATIO


@pytest.mark.long
def test_stock_metaschedule_does_not_crash_while_it_tunes_a_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = model_tuning.tune_stock("mlp_3x512", FOLDER / "small.py", 1.0, STOCK_SECS, tmp_path, TARGET)
    assert "crashed" not in found
