"""Packs: what was signed is what is read; anything else is refused before it is parsed, and nothing of it is run."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitchpipe.deploy import packs, signing
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.deploy.packs import Pack, create_pack, open_pack
from pitchpipe.errors import IntegrityError, InvalidInput, InvalidTarget
from pitchpipe.wire.record import LookupResponse, ScheduleAnswer, Tier
from pitchpipe.wire.target import Target

TARGET = Target(kind="llvm", mcpu="znver4", num_cores=2)
ANSWERS = (ScheduleAnswer(workload="0" * 64, tier=Tier.NONE, reason="nothing is known"),)
SCHEDULES = Schedules(target=TARGET, response=LookupResponse(answers=ANSWERS))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    signing.create_keys(path)
    return path


@pytest.fixture(scope="module")
def public(key: Path) -> Path:
    return signing.public_path(key)


@pytest.fixture
def pack(key: Path, tmp_path: Path) -> Path:
    path = tmp_path / "model.pitchpack"
    create_pack(path, SCHEDULES, key, name="model")
    return path


def opened(path: Path, public: Path, target: Target = TARGET) -> Pack:
    return open_pack(path, trusted=[public], target=target)


@pytest.fixture
def parses_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, whoever parses schedules fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("what was not verified was parsed")

    return lambda: monkeypatch.setattr(LookupResponse, "model_validate_json", refuse)


def test_a_pack_holds_what_was_put_in_and_says_of_what_it_is(pack: Path, key: Path, public: Path) -> None:
    found = opened(pack, public)
    assert (found.target, found.response, found.manifest.name) == (TARGET, SCHEDULES.response, "model")
    assert packs.read_unverified(pack) == found.manifest
    assert found.manifest.key == signing.key_id(signing.private_key(key).public_key())
    assert not list(pack.parent.glob("*.part"))


def test_every_changed_byte_is_refused(pack: Path, public: Path, parses_nothing: Callable[[], None]) -> None:
    trusted = signing.trusted_keys([public])
    whole = pack.read_bytes()
    parses_nothing()
    for at in range(len(whole)):
        pack.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(IntegrityError):
            packs.verify(pack, trusted)
    pack.write_bytes(whole)
    packs.verify(pack, trusted)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_cut_lengthened_or_overwritten_is_refused(data: Any, pack: Path, public: Path) -> None:
    whole = pack.read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(at, len(whole)))
    changed = whole[:at] + data.draw(st.binary(max_size=80)) + whole[end:]
    other = pack.with_name("other")
    other.write_bytes(changed)
    if changed == whole:
        opened(other, public)
    else:
        with pytest.raises(IntegrityError):
            opened(other, public)


def test_a_pack_of_somebody_else_is_refused(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signing.create_keys(tmp_path / "stranger.pem")
    with pytest.raises(IntegrityError, match="none of the 1 trusted keys"):
        opened(pack, tmp_path / "stranger.pem.pub")
    monkeypatch.setenv("PITCHPIPE_TRUSTED_KEYS", str(tmp_path / "nowhere"))
    with pytest.raises(IntegrityError, match="none of the 0 trusted keys"):
        open_pack(pack, target=TARGET)


def test_keys_of_the_configured_folder_are_trusted(
    pack: Path, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trusted").mkdir()
    monkeypatch.setenv("PITCHPIPE_TRUSTED_KEYS", str(tmp_path / "trusted"))
    (tmp_path / "trusted" / "us.pub").write_bytes(public.read_bytes())
    assert open_pack(pack, target=TARGET).response == SCHEDULES.response


def test_an_expired_pack_is_refused(pack: Path, public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expires_at = packs.read_unverified(pack).expires_at

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return expires_at + timedelta(seconds=offset)

    assert expires_at > datetime.now(UTC)
    monkeypatch.setattr(packs, "datetime", Later)
    offset = -1
    opened(pack, public)
    offset = 0
    with pytest.raises(IntegrityError, match="expired"):
        opened(pack, public)


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        (Target(kind="llvm", mcpu="znver5", num_cores=2), True),
        (Target(kind="llvm", mcpu="haswell", num_cores=2), False),
        (Target(kind="llvm", mcpu="neoverse-n1", num_cores=2), False),
        (Target(kind="llvm", mcpu="tomorrow", num_cores=2), False),
        (Target(kind="cuda", arch="sm_90"), False),
    ],
    ids=str,
)
def test_only_a_machine_with_the_instructions_opens_it(
    target: Target, runs: bool, pack: Path, public: Path, parses_nothing: Callable[[], None]
) -> None:
    if runs:
        assert opened(pack, public, target).target == TARGET
        return
    parses_nothing()
    with pytest.raises(InvalidTarget, match="the pack is for"):
        opened(pack, public, target)


def test_a_private_key_is_for_its_owner_and_is_never_replaced(key: Path, public: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes(), public.read_bytes()
    with pytest.raises(InvalidInput):
        signing.create_keys(key)
    assert (key.read_bytes(), public.read_bytes()) == before


def test_what_is_no_key_is_named(pack: Path, key: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key")
    with pytest.raises(InvalidInput, match="no private key"):
        create_pack(tmp_path / "out", SCHEDULES, tmp_path / "text")
    for wrong in (tmp_path / "text", tmp_path / "absent", key):
        with pytest.raises(InvalidInput, match="cannot be read"):
            opened(pack, wrong)
    with pytest.raises(InvalidInput, match="cannot be read"):
        opened(tmp_path / "absent", signing.public_path(key))
