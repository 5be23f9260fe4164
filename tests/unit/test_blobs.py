"""Blobs: what was put comes back, or an error says what is wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitchpipe.errors import IntegrityError, InvalidInput, NotFound
from pitchpipe.wire.ids import sha256
from service.blobs import Blobs


@pytest.fixture(params=["folder", "path", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    folder = tmp_path / "a folder with spaces, ümlauts and 100%"
    return Blobs({"folder": folder.as_uri(), "path": str(folder), "memory": "memory:///"}[request.param])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(st.binary(max_size=5000))
def test_what_was_put_comes_back(blobs: Blobs, data: bytes) -> None:
    digest = blobs.put(data)
    assert digest == sha256(data)
    assert blobs.get(digest) == data


def test_putting_again_changes_nothing(blobs: Blobs) -> None:
    assert blobs.put(b"same") == blobs.put(b"same")


def test_what_was_never_put_is_not_found(blobs: Blobs) -> None:
    with pytest.raises(NotFound):
        blobs.get(sha256(b"never"))


@pytest.mark.parametrize("digest", ["", "../../../etc/passwd", "A" * 64, "0" * 63, "0" * 63 + "/"])
def test_what_is_no_digest_reaches_no_file(blobs: Blobs, digest: str) -> None:
    with pytest.raises(InvalidInput):
        blobs.get(digest)


def test_threads_put_the_same_bytes_at_once(blobs: Blobs) -> None:
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(blobs.put, [b"shared" * 10_000] * 16))
    assert blobs.get(digests.pop()) == b"shared" * 10_000
    assert not digests


def test_a_folder_outlives_its_process(tmp_path: Path) -> None:
    digest = Blobs(tmp_path.as_uri()).put(b"kept")
    assert Blobs(tmp_path.as_uri()).get(digest) == b"kept"


def test_damaged_bytes_are_an_integrity_error_and_putting_them_again_heals(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path.as_uri())
    digest = blobs.put(b"precious")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(b"rotten")
    with pytest.raises(IntegrityError):
        blobs.get(digest)
    assert blobs.put(b"precious") == digest
    assert blobs.get(digest) == b"precious"


def test_a_store_that_is_not_supported_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ftp"):
        Blobs("ftp://example/x")
