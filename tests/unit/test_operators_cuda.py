"""The benchmark of operators on a GPU: its shapes, what of them is run, and what its rows say."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import case_process
    import gpu_tables
    import operator_shapes_cuda as shapes
    import operators
    import operators_cuda
finally:
    sys.path.remove(str(FOLDER))


def row(name: str, ours: float, eager: float, autotune: float | None, error: float = 5e-4) -> dict[str, Any]:
    """Of times in seconds, with the fields that only a run adds."""
    secs = {"ours": ours, "eager": eager} | ({} if autotune is None else {"autotune": autotune})
    errors = dict.fromkeys(secs, 5e-4) | {"ours": error}
    found = operators_cuda.row_from(name, secs, errors, 2e9, 4e6)
    ran = {"tuning_secs": 31.4, "trials": 40, "failed_trials": 2, "commit": "0123456789"}
    return operators_cuda.identity(name) | found | ran


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script takes this machine for one with a GPU, and handles no signals."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setattr(operators_cuda, "environment", lambda *, gpu, **budget: {"budget": budget})
    monkeypatch.setattr(operators_cuda, "target_here", lambda kind: None)
    monkeypatch.setattr(operators_cuda.signal, "signal", lambda *_: None)


REFUSED = operators_cuda.identity("C3D-0") | {"refused": "UnsupportedShape: too large"}


def test_every_kind_has_ten_shapes_and_those_of_the_spike_have_its_times() -> None:
    counts = Counter(shapes.kind_and_index(name)[0] for name in shapes.names())
    assert {kind: counts.pop(kind) for kind in shapes.NOTES_SECS} == {"LIN": 9, "RES": 6}
    assert set(counts.values()) == {10}
    assert len(counts) == 13
    assert set(shapes.SHAPES) == set(shapes.PARAMETERS)
    assert {kind: len(secs) for kind, secs in shapes.NOTES_SECS.items()} == {"LIN": 9, "RES": 6}


def test_no_shape_is_measured_twice_in_a_kind_and_each_says_its_parameters() -> None:
    for kind, found in shapes.SHAPES.items():
        assert len(set(found)) == len(found), kind
        assert all(len(shape) <= len(shapes.PARAMETERS[kind]) for shape in found), kind
    assert shapes.text_of("LIN-2") == "M 128, N 3072, K 768, epilogue gelu"
    assert shapes.text_of("C1D-1") == "N 1, L 128, CI 128, CO 256, kernel 1, stride 2, padding 0"
    assert shapes.notes_secs("RES-4") == 2.43e-6
    assert shapes.notes_secs("C2D-0") is None


def test_shapes_are_chosen_by_kind_or_by_name() -> None:
    assert operators.chosen(shapes.names(), "SFM-3,RES") == [*(f"RES-{at}" for at in range(6)), "SFM-3"]
    assert set(operators_cuda.QUICK) <= set(shapes.names())
    with pytest.raises(ValueError, match="GMM-10"):
        operators.chosen(shapes.names(), "GMM-10")


def test_a_graph_has_so_many_calls_that_what_they_read_and_write_exceeds_the_cache() -> None:
    cache = 50 << 20
    assert operators_cuda.calls_for(1 << 20, cache) == 100
    assert operators_cuda.calls_for(1 << 30, cache) == operators_cuda.LEAST_CALLS
    assert operators_cuda.calls_for(16, cache) == operators_cuda.MOST_CALLS


def test_a_row_compares_with_the_faster_peer_and_with_the_spike() -> None:
    found = row("LIN-1", 2e-6, 5e-6, 4e-6)
    assert (found["best_peer"], found["best_peer_over_ours"]) == ("autotune", pytest.approx(2.0))
    assert (found["eager_over_ours"], found["autotune_over_ours"]) == pytest.approx((2.5, 2.0))
    assert found["notes_over_ours"] == pytest.approx(2.11 / 2)
    assert found["tflops"]["ours"] == pytest.approx(1000)
    assert found["within_tolerance"]
    assert "notes_secs" not in row("GMM-0", 2e-6, 5e-6, 4e-6)
    assert not row("LIN-1", 2e-6, 5e-6, 4e-6, error=0.2)["within_tolerance"]


def test_norms_and_softmax_have_bytes_per_second() -> None:
    found = row("SFM-0", 2e-6, 4e-6, None)
    assert found["gb_per_sec"] == pytest.approx({"ours": 2000, "eager": 1000})
    assert (found["best_peer"], found["autotune_secs"], found["autotune_over_ours"]) == ("eager", None, None)
    assert "tflops" not in found


def test_losses_and_what_was_not_run_are_named() -> None:
    won, lost = row("GMM-0", 1e-6, 4e-6, 5e-6), row("C2D-1", 2e-6, 3e-6, 1e-6)
    alone = row("GMM-1", 1e-6, 1e-6, None) | {"autotune_refused": "LoweringException: no"}
    found = operators_cuda.summary([won, lost, alone, REFUSED])
    assert found["geomean_vs_best_peer"] == pytest.approx((4 * 0.5 * 1) ** (1 / 3))
    assert found["worst_vs_best_peer"] == 0.5
    assert found["geomean_vs_best_peer_by_kind"] == pytest.approx({"GMM": 2.0, "C2D": 0.5})
    assert (found["shapes"], found["slower"]) == (4, ["C2D-1"])
    assert found["refused"] == ["C3D-0: UnsupportedShape: too large"]
    assert found["without_autotune"] == ["GMM-1: LoweringException: no"]
    assert found["outputs_within_tolerance"]
    wrong = operators_cuda.summary([won, row("C2D-0", 1e-6, 1e-6, 1e-6, error=float("inf"))])
    assert (wrong["outputs_within_tolerance"], wrong["out_of_tolerance"]) == (False, ["C2D-0"])
    nothing = operators_cuda.summary([REFUSED])
    assert (nothing["geomean_vs_best_peer"], nothing["worst_vs_best_peer"]) == (None, None)


def test_the_table_marks_losses_and_says_what_was_not_run() -> None:
    alone = row("SFM-1", 2e-6, 4e-6, None, error=0.2) | {"autotune_refused": "LoweringException: no"}
    rows = [row("LIN-1", 2e-6, 5e-6, 4e-6), row("C2D-1", 2e-6, 3e-6, 1e-6), alone, REFUSED]
    lines = list(gpu_tables.operators_cuda({"rows": rows, "summary": {"not_measured": ["GMM-8", "GMM-9"]}}))
    heading, _, product, convolution, softmax, *rest = lines
    assert {line.count("|") for line in (product, convolution, softmax)} == {heading.count("|")}
    assert product.startswith(
        "| LIN-1 | M 128, N 768, K 768, epilogue none | 2 µs | 5 µs, 2.50 | 4 µs, 2.00 | autotune: 2.00 |"
    )
    assert "2.11 µs, 1.06" in product
    assert "autotune: **0.50**" in convolution
    assert "| - | eager: 2.00 | 2000 GB/s | - | **wrong**: 2e-01, 5e-04, - |" in softmax
    assert "SFM-1 was not run by max-autotune: LoweringException: no." in rest
    assert f"C3D-0 ({shapes.text_of('C3D-0')}) was not run: UnsupportedShape: too large." in rest
    assert rest[-1] == "Not measured yet: GMM-8, GMM-9."


def test_what_is_kept_is_not_measured_again_and_what_was_refused_only_on_demand(
    without_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def measured(script: str, case: dict[str, Any], limit_secs: float) -> dict[str, Any]:
        asked.append(case["name"])
        if case["name"] == "C3D-0":
            return {"refused": "UnsupportedShape: too large"}
        return row(case["name"], 1e-6, 2e-6, 3e-6)

    monkeypatch.setattr(operators_cuda, "row_of", measured)
    options = Namespace(json=True, quick=False, seconds=None, work=tmp_path / "rows", retry=False)

    def run(*names: str) -> dict[str, Any]:
        operators_cuda.main(options, names)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert run("LIN-0", "C3D-0")["summary"]["refused"] == ["C3D-0: UnsupportedShape: too large"]
    assert [one["name"] for one in run("LIN-0", "C3D-0", "GMM-0")["rows"]] == ["LIN-0", "C3D-0", "GMM-0"]
    assert asked == ["LIN-0", "C3D-0", "GMM-0"]
    options.retry = True
    found = run("LIN-0", "C3D-0")
    assert asked[3:] == ["C3D-0"]
    assert found["environment"]["budget"] == {"seconds": operators_cuda.SECONDS, "rounds": operators_cuda.ROUNDS}


def test_an_interrupted_run_prints_what_it_has(
    without_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(script: str, case: dict[str, Any], limit_secs: float) -> dict[str, Any]:
        if case["name"] == "GMM-1":
            raise KeyboardInterrupt
        return row(case["name"], 1e-6, 2e-6, 3e-6)

    monkeypatch.setattr(operators_cuda, "row_of", measured)
    options = Namespace(json=True, quick=True, seconds=None, work=tmp_path, retry=False)
    operators_cuda.main(options, ["GMM-0", "GMM-1", "GMM-2"])
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["rows"]] == ["GMM-0"]
    assert found["summary"]["not_measured"] == ["GMM-1", "GMM-2"]
    assert [file.name for file in tmp_path.iterdir()] == ["GMM-0.json"]


@pytest.mark.parametrize(
    ("body", "limit", "expected"),
    [
        ("print('words'); print(json.dumps({'secs': case['n'] / 2}))", None, {"secs": 1.5}),
        ("sys.exit(3)", None, {"refused": "its process ended with 3"}),
        ("import time; time.sleep(60)", 0.5, {"refused": "its process had not ended after 0 s"}),
    ],
    ids=["a row", "an error", "too long"],
)
def test_a_case_in_a_process_of_its_own_gives_its_row_or_the_reason_why_there_is_none(
    tmp_path: Path, body: str, limit: float | None, expected: dict[str, Any]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import json, sys\ncase = json.load(open(sys.argv[1]))\n{body}\n")
    assert case_process.row_of(str(script), {"n": 3, "scratch": str(tmp_path)}, limit) == expected


def test_cases_are_set_up_side_by_side_and_timed_one_after_another(tmp_path: Path) -> None:
    """None says that it is set up before both are there, and the second begins to time when the first has ended."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys, time\n"
        "from pathlib import Path\n"
        "case = json.load(open(sys.argv[1]))\n"
        "folder, name = Path(case['scratch']), case['name']\n"
        "if name == 'broken': sys.exit(3)\n"
        "(folder / name).touch()\n"
        "while not all((folder / other).exists() for other in ('first', 'second')): time.sleep(0.01)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "ended = sorted(one.stem for one in folder.glob('*.ended'))\n"
        "time.sleep(0.2)\n"
        "(folder / f'{name}.ended').touch()\n"
        "print(json.dumps({'name': name, 'after': ended}))\n"
    )
    cases = [{"name": name, "scratch": str(tmp_path)} for name in ("first", "broken", "second")]
    assert list(case_process.rows_of(str(script), cases)) == [
        {"name": "first", "after": []},
        {"refused": "its process ended with 3"},
        {"name": "second", "after": ["first"]},
    ]


def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys, time\n"
        "from pathlib import Path\n"
        "case = json.load(open(sys.argv[1]))\n"
        "(Path(case['scratch']) / case['name']).write_text(str(os.getpid()))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "if case['name'] == 'second': time.sleep(60)\n"
        "print('{}')\n"
    )
    rows = case_process.rows_of(str(script), [{"name": name, "scratch": str(tmp_path)} for name in ("first", "second")])
    next(rows)
    rows.close()
    assert not psutil.pid_exists(int((tmp_path / "second").read_text()))
