"""What measured points of other workloads say about a point: learned, shipped, and used where it applies."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiler.gpu_programs import HOPPER
from tests.compiler.half_workloads import TEN
from tuner.templates.contraction import Contraction, find_contraction
from tuner.templates.estimate import estimate_secs
from tuner.templates.experience import FILE, described, factors, features, learn, shipped, with_products
from tuner.templates.points import Points, points_of
from tuner.templates.space import LISTED, contraction_space, expected_secs
from tuner.templates.text import CONTRACTION, parse
from tuner.tvm_compat import load_ir

NAMES = ("128x768x3072, residual", "3x3 14x14x256, residual", "197x768x768, residual")


def contraction(name: str) -> Contraction:
    return find_contraction(load_ir(TEN[name]().ir))


def pointers(name: str) -> tuple[Contraction, Points, NDArray[np.float64]]:
    """A contraction, its points of one template, and their features."""
    found = contraction(name)
    points = next(one for one in points_of(found, HOPPER) if one.template == CONTRACTION)
    return found, points, features(found, points, estimate_secs(found, points))


@pytest.mark.parametrize("name", NAMES)
def test_features_have_names_and_are_finite(name: str) -> None:
    found, points, told = pointers(name)
    names = list(described(found, points, estimate_secs(found, points)))
    assert told.shape == (len(points), len(names))
    assert np.isfinite(told).all()
    assert (told[:, names.index("rows")] == np.log2(points["rows"])).all()
    assert (factors(found, HOPPER, points, estimate_secs(found, points)) > 0).all()


def test_what_is_shipped_was_learned_from_these_features() -> None:
    found, points, _ = pointers(NAMES[0])
    names = list(described(found, points, estimate_secs(found, points)))
    assert json.loads(resources.files("tuner.templates").joinpath(FILE).read_text())["features"] == names
    assert len(shipped().mean) == len(names)
    assert len(shipped().weights) == with_products(np.zeros((1, len(names)))).shape[1]


def test_what_other_workloads_have_in_common_is_learned_and_orders_the_points_of_one_that_was_not_seen() -> None:
    """A made-up device on which eight warps and few stages are slow, whatever the workload."""

    def slower(points: Points) -> NDArray[np.float64]:
        return 0.4 * (points["warps"] == 8) + 0.1 * np.abs(points["stages"] - 4.0)

    *known, unseen = NAMES
    rng = np.random.default_rng(0)
    told, ratios = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
    for nth, name in enumerate(known):
        _, points, rows = pointers(name)
        chosen = rng.choice(len(points), size=400, replace=False)
        told.append(rows[chosen])
        ratios.append(slower(points)[chosen] + 0.7 * nth)  # Each workload has a constant of its own.
    learned = learn(told, ratios, ridge=1.0)
    _, points, rows = pointers(unseen)
    assert np.corrcoef(learned.corrections(rows), slower(points))[0, 1] > 0.95


def test_a_point_beyond_what_was_measured_has_the_nearest_measured_features() -> None:
    _, _, rows = pointers(NAMES[0])
    learned = learn([rows[:300], rows[300:900]], [rows[:300, 1], rows[300:900, 1]], ridge=1.0)
    far = rows[:1] + 1e6
    assert np.array_equal(learned.expanded(far), learned.expanded(learned.most[None, :]))


def test_there_is_experience_of_half_precision_on_a_hopper_alone() -> None:
    found, points, _ = pointers(NAMES[0])
    estimates = estimate_secs(found, points)
    assert np.ptp(factors(found, HOPPER, points, estimates)) > 0
    ampere = HOPPER.model_copy(update={"arch": "sm_86"})
    assert (factors(found, ampere, points, estimates) == 1).all()
    assert (factors(replace(found, dtype="float32"), HOPPER, points, estimates) == 1).all()
    assert (expected_secs(found, ampere, points) == estimates).all()


def test_a_space_offers_its_best_points() -> None:
    found = contraction(NAMES[0])
    listed = contraction_space(found, HOPPER)
    every = np.sort(np.concatenate([expected_secs(found, HOPPER, points) for points in points_of(found, HOPPER)]))
    assert len(listed) == LISTED < len(every)
    assert np.allclose(sorted(one.estimate_secs for one in listed), every[:LISTED])
    assert len({one.text for one in listed}) == LISTED
    assert all(parse(one.text).text == one.text for one in listed[:50])
