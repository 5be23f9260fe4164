"""What the benchmarks make of their samples: orders, intervals, ratios, and the processes that wait for their turn."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import before_after
    import budgets
    import environment
    import latency
    import memory_bound_cuda
    import model_tuning
    import operators
    import rounds
    import torch_backend
    import untuned
    from contestants import Contestant, ContestantFailed, take_turns
    from peers import metaschedule, stock_model
finally:
    sys.path.remove(str(FOLDER))

CONTESTANT = """
import json, sys
print(json.dumps({"pid": __import__("os").getpid()}), flush=True)
for line in sys.stdin:
    print(json.dumps([0.001] * max(1, json.loads(line)["least"])), flush=True)
"""


def test_everybody_has_every_place_equally_often_and_rounds_come_in_mirrored_pairs() -> None:
    found = rounds.orders(5, 10)
    for place in range(5):
        assert Counter(order[place] for order in found) == dict.fromkeys(range(5), 2)
    assert all(second == first[::-1] for first, second in zip(found[::2], found[1::2], strict=True))


def test_a_disturbance_longer_than_a_round_leaves_the_ratio_alone() -> None:
    slowed = [1.0] * 6 + [3.0] * 4
    ours = [[0.010 * factor] * 3 for factor in slowed]
    peer = [[0.011 * factor] * 3 for factor in slowed]
    found = rounds.ratio_of(peer, ours)
    assert (found.value, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))
    assert rounds.time_of(ours).high == pytest.approx(0.030)


def test_one_disturbed_run_of_a_block_does_not_count() -> None:
    assert rounds.time_of([[1.0, 1.0, 9.0]] * 6).value == 1.0


def test_the_geometric_mean_of_a_gain_and_its_inverse_is_one() -> None:
    assert rounds.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert rounds.geometric_mean([4.0, 1.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="math domain"):
        rounds.geometric_mean([1.0, 0.0])


def test_small_kernels_need_no_share_of_a_copys_bandwidth_but_inductors_time() -> None:
    def row(name: str, size: int, share: float, over: float, agrees: bool = True) -> dict[str, object]:
        return {"operator": name, "bytes": size, "share_of_copy": share, "over_inductor": over, "agrees": agrees}

    rows = [row("small", 4_000_000, 0.1, 1.3), row("large", 5_000_000, 0.7, 0.9), row("good", 64_000_000, 0.9, 1.2)]
    found = memory_bound_cuda.summary(rows)
    assert found["below_share"] == ["large"]
    assert found["worst_share_of_copy"] == 0.7
    assert found["slower_than_inductor"] == ["small"]
    assert found["worst_over_inductor"] == 1.3
    assert found["all_agree"]
    assert not memory_bound_cuda.summary([*rows, row("wrong", 1, 1, 1, False)])["all_agree"]


def test_the_latency_falls_as_tasks_get_better_and_never_rises() -> None:
    best, weights = {"a": 4.0, "b": 1.0}, {"a": 2, "b": 3}
    found = [(9.0, 1.0, "a"), (5.0, 2.0, "a"), (7.0, 3.0, "a"), (6.0, 0.9999, "b")]
    series = model_tuning.falling(1.5, best, weights, found)
    assert series == [(1.5, 11.0), (5.0, 7.0), (9.0, pytest.approx(4.9997))]
    assert rounds.first_at_most(series, 7.0) == 5.0
    assert rounds.first_at_most(series, 1.0) is None


def test_time_to_stocks_latency_admits_that_a_model_costs_more_than_its_parts() -> None:
    tuned = {"series": [(2.0, 0.100), (10.0, 0.050), (20.0, 0.020)]}
    stock = {"stock": {"secs": 300.0}, "stock_longer": {"secs": 600.0}}
    peers = {"metaschedule": {"secs": 0.090}, "metaschedule_longer": {"secs": 0.060}}
    exact = latency.against_stock(tuned, 0.020, stock, peers)
    assert (exact["time_to_stock_secs"], exact["stock_tuning_over_time_to_stock"]) == (10.0, 60.0)
    half_as_fast_in_the_whole = latency.against_stock(tuned, 0.040, stock, peers)
    assert half_as_fast_in_the_whole["time_to_stock_secs"] == 20.0
    assert latency.against_stock(tuned, 0.080, stock, peers)["time_to_stock_secs"] is None


def test_a_wrong_element_is_outside_the_tolerance_whatever_the_others_are() -> None:
    reference = np.linspace(-1.0, 1.0, 1001, dtype=np.float32)
    assert latency.deviation(reference * (1 + 1e-6), reference) < latency.TOLERANCE
    wrong = reference.copy()
    wrong[500] = 0.01  # the element that is zero
    assert latency.deviation(wrong, reference) > latency.TOLERANCE
    wrong[500] = math.nan
    assert latency.deviation(wrong, reference) == math.inf
    assert latency.deviation(reference[:-1], reference) == math.inf
    assert latency.deviation(0 * reference, 0 * reference) == 0
    assert latency.deviation(reference, 0 * reference) == math.inf


def test_workloads_are_chosen_by_kind_or_by_shape() -> None:
    names = ["GMM-0", "GMM-1", "C2D-0", "C2D_WIN_NHWC-0"]
    assert operators.chosen(names, None) == names
    assert operators.chosen(names, "C2D,GMM-1") == ["GMM-1", "C2D-0"]
    with pytest.raises(ValueError, match="GMM-7"):
        operators.chosen(names, "C2D,GMM-7")


def test_a_line_that_a_killed_tuning_was_writing_is_dropped(tmp_path: Path) -> None:
    (tmp_path / stock_model.WORKLOADS).write_text("[1]\n[2]\n")
    (tmp_path / stock_model.RECORDS).write_text("[0,[3]]\n[1,[4]]\n[1,[")
    assert stock_model.keep_whole_lines(tmp_path) == 2
    assert (tmp_path / stock_model.RECORDS).read_text() == "[0,[3]]\n[1,[4]]\n"
    assert (tmp_path / stock_model.WORKLOADS).read_text() == "[1]\n[2]\n"


def test_losses_are_named_and_told_from_noise() -> None:
    def row(name: str, stock: tuple[float, float, float], ours: tuple[float, float, float]) -> dict[str, object]:
        return {
            "workload": name,
            "ratio": stock[1] / ours[1],
            "ratio_at_trials": 1.0,
            "stock_interval_secs": [stock[0], stock[2]],
            "ours_interval_secs": [ours[0], ours[2]],
            "our_total_secs": 10.0,
            "stock_secs": 9.0 if name == "late" else 60.0,
        }

    none = row("none", (1, 1, 1), (1, 1, 1)) | {"ratio": None, "ratio_at_trials": None, "stock_interval_secs": None}
    found = operators.summary(
        [row("won", (3, 4, 5), (1, 1, 1)), row("noise", (1, 2, 4), (3, 4, 5)), row("late", (1, 2, 2), (3, 4, 5)), none]
    )
    assert found["geomean_vs_stock"] == pytest.approx(1.0)
    assert (found["worst_vs_stock"], found["shapes"]) == (0.5, 4)
    assert found["slower"] == ["late", "noise"]
    assert found["slower_for_certain"] == found["over_time"] == ["late"]
    assert found["without_a_ratio"] == ["none"]


def test_rows_in_which_nothing_of_ours_ran_are_counted_and_in_no_ratio() -> None:
    def row(over: float, deviation: float = 1e-6, **more: object) -> dict[str, object]:
        return {"eager_over_ours": over, "deviation": deviation, "within_tolerance": True, **more}

    rows = [
        row(4.0, runs_ours=True),
        row(1.0, deviation=0.0, runs_ours=True),
        row(9.0, runs_ours=False),
        row(9.0, deviation=0.0),
    ]
    found = torch_backend.summary(rows)
    assert found["kept_eager"] == 2
    assert (found["worst_vs_eager"], found["geomean_vs_eager"]) == (1.0, pytest.approx(2.0))
    assert torch_backend.summary(rows[2:])["geomean_vs_eager"] is None


def test_the_kept_summary_of_torch_compile_is_that_of_its_rows() -> None:
    kept = json.loads((FOLDER / "results" / "torch_backend.json").read_text())
    assert torch_backend.summary(kept["rows"]) == kept["summary"]


def test_a_contestant_stands_still_between_its_turns_and_is_gone_in_the_end(tmp_path: Path) -> None:
    script = tmp_path / "contestant.py"
    script.write_text(CONTESTANT)
    with (
        Contestant("one", [str(script)], {}, tmp_path / "one.log") as one,
        Contestant("two", [str(script)], {}, tmp_path / "two.log") as two,
    ):
        processes = [psutil.Process(contestant.ready()["pid"]) for contestant in (one, two)]
        blocks = take_turns([one, two], 3)
        assert [process.status() for process in processes] == [psutil.STATUS_STOPPED] * 2
    assert {name: list(map(len, found)) for name, found in blocks.items()} == {"one": [3] * 3, "two": [3] * 3}
    assert not any(process.is_running() for process in processes)


def test_a_contestant_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "contestant.py"
    script.write_text("raise SystemExit('no such peer')")
    with (
        Contestant("lost", [str(script)], {}, tmp_path / "log") as lost,
        pytest.raises(ContestantFailed, match="lost ended:\nno such peer"),
    ):
        lost.ready()


def test_every_benchmark_is_run_by_make_bench() -> None:
    """A script is a benchmark if it takes --json and --quick from environment.py, but for the one that measures learning's data."""
    scripts = {
        path.stem
        for path in FOLDER.glob("*.py")
        if path.stem not in ("environment", "replay_set")
        and re.search(r"^    .*= (models_)?parser\(__doc__\)", path.read_text(), re.MULTILINE)
    }
    lines = re.findall(r"^BENCHMARKS [:+]= (.*)$", (FOLDER.parent / "Makefile").read_text(), re.MULTILINE)
    run = " ".join(lines).split()
    assert len(run) == len(set(run))
    assert set(run) == scripts


def test_a_benchmark_of_a_gpu_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="--target cuda: this machine has no device"):
        environment.target_here("cuda")


def test_a_change_that_makes_a_model_slower_is_found_though_the_machine_slows_meanwhile() -> None:
    drift = [1.0] * 6 + [2.0] * 6
    blocks = {
        "before": [[0.010 * factor] * 3 for factor in drift],
        "after": [[0.011 * factor] * 3 for factor in drift],
    }
    tiers = {"before_tiers": {"exact": 20}, "after_tiers": {"exact": 20}}
    slower = before_after.row("slower", blocks, 1e-6) | tiers
    same = before_after.row("same", {"before": blocks["before"], "after": blocks["before"]}, 1e-6) | tiers
    moved = same | {"model": "moved", "after_tiers": {"exact": 19, "none": 1}}
    found = before_after.summary([slower, same, moved])
    assert slower["before_over_after"] == pytest.approx(10 / 11)
    assert (found["slower_for_certain"], found["other_tiers"]) == (["slower"], ["moved"])
    assert found["outputs_within_tolerance"]


def test_the_database_of_a_comparison_is_read_and_not_written(tmp_path: Path) -> None:
    original, copy = tmp_path / "mine.db", tmp_path / "side"
    copy.mkdir()
    with closing(sqlite3.connect(original)) as database:
        database.execute("CREATE TABLE best (trace TEXT)")
        database.execute("INSERT INTO best VALUES ('[]')")
        database.commit()
    before = original.read_bytes()
    before_after.copied(original, copy)
    with closing(sqlite3.connect(copy / "pitchpipe.db")) as database:
        assert database.execute("SELECT trace FROM best").fetchall() == [("[]",)]
        database.execute("DROP TABLE best")
    assert original.read_bytes() == before


def test_stocks_processes_start_lean_and_find_the_libraries_that_this_one_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/libraries")
    lean, also = metaschedule.lean_path().split(os.pathsep)
    assert (Path(lean) / "sitecustomize.py").exists()
    assert also == "/libraries"
    monkeypatch.delenv("PYTHONPATH")
    assert metaschedule.lean_path() == lean


def test_trials_of_stock_that_gave_no_time_are_told_apart() -> None:
    assert metaschedule.failure("build", "LocalBuilder: Timeout, killed after 30.0 seconds") == "build_timeout"
    assert metaschedule.failure("run", "LocalRunner: Timeout, killed after 30 seconds\n") == "run_timeout"
    raised = "LocalBuilder: An exception occurred\nRuntimeError: a step of it: Timeout, killed after 3 seconds"
    assert metaschedule.failure("build", raised) == "build_error"


def test_the_seconds_of_leases_are_told_by_stage_and_one_granted_ahead_counts_from_the_end_of_the_one_before() -> None:
    result = json.dumps({"outcome": "timed", "build_secs": 0.5, "run_secs": [0.01] * 10, "rule": {"calls": 5}})
    failed = json.dumps({"outcome": "failed"})
    found = budgets.stages(
        [
            ("lea_1", "wrk_1", 0.0, "search", 3.0, result),
            ("lea_1", "wrk_1", 0.0, "search", 4.0, failed),
            ("lea_2", "wrk_1", 2.0, "confirm", 5.0, result),
        ],
        cores=2,
    )
    assert found == pytest.approx({"compiling": 0.25, "timing": 0.5, "checking": 3.25, "confirming": 1.0})


def test_forecasts_are_compared_with_what_came_at_three_moments_of_the_budget() -> None:
    told = {"forecast_secs": 1.1, "forecast_low_secs": 0.9, "forecast_high_secs": 1.2}
    later = {"forecast_secs": 0.8, "forecast_low_secs": 0.7, "forecast_high_secs": 0.9}
    errors, held = budgets.forecasts([(1.0, {}), (3.0, told), (6.0, later), (9.0, told)], 10.0, 1.0)
    assert errors == pytest.approx([0.1, -0.2])
    assert held == 1
    assert budgets.forecasts([], 10.0, None) == ([], 0)


def test_a_model_whose_peers_are_all_out_of_tolerance_is_compared_with_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("eager", 1.0), ("ours", 1.0), ("wrong", 2.0)):
        np.save(tmp_path / f"{name}.npy", np.full(4, value, np.float32))
    told = {
        name: {"output": str(tmp_path / f"{name}.npy"), "setup_secs": 1.0, "flops": 10}
        for name in ("eager", "ours", "wrong")
    }
    blocks = {name: [[secs] * 3] * 6 for name, secs in (("eager", 0.03), ("ours", 0.01), ("wrong", 0.02))}
    tuned = dict.fromkeys(("trials", "failed_trials", "reused_tasks", "database", "tuned_on", "tasks"), 0)
    tuned |= {"tuning_secs": 1.0, "series": [(1.0, 0.01)]}
    beside_eager = latency.row("m", told, blocks, 1e9, tuned, None)
    assert (beside_eager["best_peer"], beside_eager["best_peer_over_ours"]) == ("eager", pytest.approx(3.0))
    assert "wrong is no peer, its output is 5.0e-01 off eager's" in capsys.readouterr().err
    told["ours"]["output"] = told["wrong"]["output"]
    alone = latency.row("m", told, {name: blocks[name] for name in ("ours", "wrong")}, 1e9, tuned, None)
    assert (alone["best_peer"], alone["best_peer_over_ours"], alone["within_tolerance"]) == (None, None, False)
    assert latency.summary([alone])["geomean_vs_best_peer"] is None
    assert latency.summary([alone, beside_eager])["geomean_vs_best_peer"] == pytest.approx(3.0)


def test_a_default_build_is_compared_with_the_tuned_one_and_with_peers_that_are_right(tmp_path: Path) -> None:
    outputs = {"eager": 1.0, "openvino": 3.0, "ours": 1.0, "default": 1.0}
    for name, value in outputs.items():
        np.save(tmp_path / f"{name}.npy", np.full(4, value, np.float32))
    told = {name: {"output": str(tmp_path / f"{name}.npy"), "setup_secs": 7.0} for name in outputs}
    blocks = {
        name: [[secs] * 3] * 6
        for name, secs in (("eager", 0.03), ("openvino", 0.005), ("ours", 0.01), ("default", 0.02))
    }
    found = untuned.row("m", told, blocks, {"tuning_secs": 61.0, "tuned_on": "2026-11-22"})
    assert (found["tuning_secs"], found["tuned_on"]) == (61.0, "2026-11-22")
    assert (found["best_peer"], found["load_secs"], found["within_tolerance"]) == ("eager", 7.0, True)
    assert found["default_over_tuned"] == pytest.approx(2.0)
    assert found["best_peer_over_default"] == pytest.approx(1.5)
    summed = untuned.summary([found, {**found, "model": "n", "default_over_tuned": 1.2, "best_peer": None}])
    assert (summed["over_the_aim"], summed["worst_default_over_tuned"]) == (["m"], pytest.approx(2.0))
    assert summed["geomean_best_peer_over_default"] == pytest.approx(1.5)
