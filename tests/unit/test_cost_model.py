"""The cost model on made-up features: what it learns, what it refuses."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitchpipe.errors import IntegrityError, InvalidInput
from pitchpipe.wire.ids import sha256
from tuner.search.cost_model import (
    FEATURES,
    CostModel,
    _sealed,
    held_out_metrics,
    is_held_out,
    pack_features,
    train,
    unpack_features,
)
from tuner.search.requests import Sample, TrainedModel

_DIGESTS = [sha256(str(n).encode()) for n in range(100)]
WORKLOADS = [digest for digest in _DIGESTS if not is_held_out(digest)]
HELD_OUT = [digest for digest in _DIGESTS if is_held_out(digest)]
WORKLOADS.insert(4, HELD_OUT[0])


def samples(workloads: int = 5, each: int = 60, seed: int = 0) -> list[Sample]:
    """Candidates whose seconds follow from their features by a rule that is the same for every workload; the fifth is held out."""
    rng = np.random.default_rng(seed)
    made = []
    for workload in range(workloads):
        scale = 10.0 ** rng.uniform(-5, -2)
        for _ in range(each):
            features = np.zeros((2, FEATURES), dtype=np.float32)
            features[:, :16] = rng.integers(0, 4, (2, 16))
            features[0, 20] = 1
            secs = scale * float(np.exp(features[0, 3] - features[1, 7] / 2))
            failed = features[0, 11] == 3 and features[0, 13] == 3
            made.append(
                Sample(workload=WORKLOADS[workload], features=pack_features(features), secs=None if failed else secs)
            )
    return made


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    trained = train(samples(), 0)
    assert trained is not None
    return trained


def test_a_model_ranks_workloads_it_never_saw(model: TrainedModel) -> None:
    assert model.samples == 300
    assert model.metrics["held_out_tasks"] == 1
    assert model.metrics["pairwise"] > 0.8
    assert 0.5 < model.metrics["peak@1"] <= model.metrics["peak@5"] <= 1


def test_higher_scores_are_faster_candidates(model: TrainedModel) -> None:
    unseen = samples(workloads=1, each=60, seed=9)
    scores = CostModel.load(model.data).predict([unpack_features(s.features) for s in unseen])
    speed = np.array([1 / s.secs if s.secs else 0.0 for s in unseen])
    assert np.corrcoef(np.argsort(np.argsort(scores)), np.argsort(np.argsort(speed)))[0, 1] > 0.6


def test_training_twice_gives_the_same_bytes(model: TrainedModel) -> None:
    assert train(samples(), 0) == model
    assert CostModel.load(model.data).predict([]).shape == (0,)


def test_too_few_samples_or_only_failures_teach_nothing() -> None:
    assert train([], 0) is None
    assert train(samples()[:10], 0) is None
    assert train([Sample(workload="w", features=s.features, secs=None) for s in samples()], 0) is None


def test_one_workload_trains_without_held_out_metrics() -> None:
    trained = train(samples(workloads=1), 0)
    assert trained is not None
    assert trained.metrics == {"held_out_tasks": 0.0}


def test_samples_that_do_not_unpack_are_left_out(model: TrainedModel) -> None:
    spoiled = [Sample(workload="w0", features=b"not features", secs=1e-9), *samples()]
    assert train(spoiled, 0) == model


@pytest.mark.parametrize("cut", [0, 1, 5, 36, 37, 1000, -1])
def test_a_truncated_model_is_refused(model: TrainedModel, cut: int) -> None:
    with pytest.raises(IntegrityError):
        CostModel.load(model.data[:cut])


def test_a_flipped_bit_is_refused(model: TrainedModel) -> None:
    damaged = bytearray(model.data)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(IntegrityError):
        CostModel.load(bytes(damaged))


def poison(model: TrainedModel, change: Any) -> bytes:
    """The model with a changed document under a valid seal."""
    document = json.loads(zlib.decompress(model.data[37:]))
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    change(document, max(trees, key=lambda tree: len(tree["left_children"])))
    return _sealed(json.dumps(document).encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda document, tree: tree["left_children"].__setitem__(0, 10**6),
        lambda document, tree: tree["left_children"].__setitem__(0, -7),
        lambda document, tree: tree["left_children"].__setitem__(1, 0),
        lambda document, tree: tree["right_children"].__setitem__(0, tree["left_children"][0]),
        lambda document, tree: tree["split_indices"].__setitem__(0, 5000),
        lambda document, tree: tree["split_indices"].pop(),
        lambda document, tree: tree["split_conditions"].__setitem__(0, float("nan")),
        lambda document, tree: tree["split_conditions"].__setitem__(0, "x"),
        lambda document, tree: tree.clear(),
        lambda document, tree: document["learner"].pop("gradient_booster"),
        lambda document, tree: document["learner"]["gradient_booster"].__setitem__("name", "gblinear"),
        lambda document, tree: document["learner"]["learner_model_param"].__setitem__("num_feature", "3"),
        lambda document, tree: document.clear(),
    ],
)
def test_a_poisoned_model_is_refused_before_it_predicts(model: TrainedModel, change: Any) -> None:
    with pytest.raises(IntegrityError):
        CostModel.load(poison(model, change))


def test_an_untouched_document_under_a_new_seal_loads(model: TrainedModel) -> None:
    features = [np.ones((2, FEATURES), dtype=np.float32)]
    resealed = CostModel.load(poison(model, lambda document, tree: None))
    assert resealed.predict(features) == CostModel.load(model.data).predict(features)


@given(st.integers(0, 2**32), st.integers(0, 8))
@settings(max_examples=25)
def test_features_come_back_as_they_were_packed(seed: int, rows: int) -> None:
    features = np.random.default_rng(seed).normal(0, 1e3, (rows, FEATURES)).astype(np.float16).astype(np.float32)
    assert np.array_equal(unpack_features(pack_features(features)), features)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_not_features(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        unpack_features(data)


def test_features_that_unpack_to_gigabytes_are_refused() -> None:
    with pytest.raises(InvalidInput):
        unpack_features(zlib.compress(b"\x00\x01" + b"\xa4\x00" + bytes(50_000_000)))


def test_the_metrics_are_what_their_definitions_say() -> None:
    y = np.array([1.0, 0.5, 0.25, 0.0])
    assert held_out_metrics([(y, y)]) == {"pairwise": 1.0, "peak@1": 1.0, "peak@5": 1.0}
    assert held_out_metrics([(y, -y)]) == {
        "pairwise": 0.0,
        "peak@1": 0.0,
        "peak@5": pytest.approx((0.25 + 0.5 + 1) / 4),
    }
    assert held_out_metrics([(np.zeros(3), np.arange(3.0))]) == {}


def test_which_workloads_are_held_out_follows_from_their_digests() -> None:
    names = [f"w{n}" for n in range(1000)]
    held_out = [name for name in names if is_held_out(name)]
    assert 150 < len(held_out) < 250
    assert held_out == [name for name in reversed(names) if is_held_out(name)][::-1]


def test_a_judge_never_saw_the_held_out_workloads(model: TrainedModel) -> None:
    seen = [sample for sample in samples() if not is_held_out(sample.workload)]
    assert len(seen) < 300
    alone = train(seen, 0)
    assert alone is not None
    assert alone.judge == alone.data
    assert model.judge not in (None, model.data)
