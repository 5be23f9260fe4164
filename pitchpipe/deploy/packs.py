"""Packs: one signed file with a model's schedules and, if wanted, its compiled library, for machines without a service.

    offset  bytes  what
    0       8      MAGIC
    8       4      bytes of the manifest, little-endian
    12      64     Ed25519 signature of DOMAIN + bytes 0 to 12 + the manifest
    76      ...    the manifest: canonical JSON (PackManifest)
    ...     ...    the members one after another, as the manifest lists them, and nothing behind them

Everything is bounded before it is read, and nothing is parsed before the signature holds. The members are plain bytes
whose digests are in the manifest: no pickle, no archive, no names that could be paths.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field, ValidationError

from pitchpipe import target_kind
from pitchpipe.deploy import identity, lookup, signing
from pitchpipe.deploy.artifact import CompiledModel, Manifest, cache_dir, compiled_file, write
from pitchpipe.deploy.building import BuildSpec, artifact_folder, compile_only, make
from pitchpipe.deploy.evidence import Evidence, gather
from pitchpipe.deploy.proof import check, open_proved, proof_of, prove
from pitchpipe.deploy.verify import weights_digest
from pitchpipe.errors import IntegrityError, InvalidInput, InvalidTarget, MeasurementFailed
from pitchpipe.model.local import LocalModel
from pitchpipe.model.reference import Expected
from pitchpipe.wire._base import Digest, Instant, Wire
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.ids import canonical_json, sha256
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")

MAGIC = b"PITCHPK\x01"
DOMAIN = b"pitchpipe pack\0"
"""Signed along, so that a signature made for something else is none of a pack."""
MAX_MANIFEST_BYTES = 1 << 20
MAX_MEMBER_BYTES = 1 << 32
MAX_SCHEDULES_BYTES = 256 << 20
VALID_DAYS = 365
_HEAD = struct.Struct("<8sI64s")
_CHUNK_BYTES = 1 << 20


class MemberKind(StrEnum):
    """What a member holds."""

    SCHEDULES = "schedules"
    """A LookupResponse."""
    ARTIFACT = "artifact"
    """The Manifest of the library."""
    LIBRARY = "library"
    """The compiled model: a shared object, or a program for a GPU."""
    EXPECTED = "expected"
    """An input set of the model, and the outputs of its framework: an Expected, as it writes itself into a file."""


class Member(Wire):
    """Bytes in a pack."""

    kind: MemberKind
    size: int = Field(ge=0, le=MAX_MEMBER_BYTES)
    digest: Digest


class PackManifest(Wire):
    """What a pack says of itself, under its signature."""

    version: int = 1
    """2 of those with outputs of the model's framework, which the first readers do not know."""
    name: str = Field(max_length=256, description="of the model; a label")
    key: Digest = Field(description="id of the key that signed it")
    created_at: Instant
    expires_at: Instant
    target: Target
    compiler: tuple[str, ...] = Field(description="versions of pitchpipe, apache-tvm and apache-tvm-ffi of its maker")
    recipe: Digest | None = Field(
        description="key of the BuildSpec of the artifact that it holds; none without objects"
    )
    weights: Digest | None = Field(default=None, description="of those with which the framework gave what is expected")
    comparison: Comparison | None = Field(default=None, description="of the library, where the pack was made")
    members: tuple[Member, ...] = Field(min_length=1, max_length=8)


@dataclass(frozen=True, kw_only=True, repr=False)
class Pack(lookup.Schedules):
    """The schedules of a pack that was verified, and where its library is, if it has one."""

    path: Path
    manifest: PackManifest

    @property
    def compiler(self) -> tuple[str, ...] | None:
        """Of the pack's maker, where no compiler is installed and what the pack holds runs without one."""
        alone = self.manifest.recipe is not None and not target_kind.kind_of(self.target).needs_compiler
        return self.manifest.compiler if alone and identity.versions_here() is None else None

    def install(self, spec: BuildSpec, cache: Path) -> None:
        """Puts the compiled model into the cache if it is the one that the spec asks for. Raises IntegrityError."""
        if spec.key == self.manifest.recipe:
            self._unpack(spec.folder(cache))

    def load(self, weights: Mapping[str, Any], *, cache: Path | None = None) -> CompiledModel:
        """The compiled model that the pack holds, with these weights (by parameter name); the model itself is not needed.

        It is tried in a child first, once per machine, and compared with the outputs in the pack if the weights are those
        with which they were made. A model for a GPU needs NVIDIA's driver and no compiler.

        Raises InvalidInput for a pack without objects, IntegrityError, and what `pitchpipe.load` raises for what was built.
        """
        if self.manifest.recipe is None:
            raise InvalidInput("the pack holds schedules, and no compiled model")
        folder = artifact_folder(cache or cache_dir(), self.manifest.recipe)
        self._unpack(folder)
        expected = self._expected() if weights_digest(weights) == self.manifest.weights else None
        evidence = Evidence(expected=expected, weights=weights) if expected is not None else None
        check(prove(folder, evidence=(lambda: evidence) if evidence is not None else None), folder)
        return open_proved(folder, self.target, weights)

    def _unpack(self, folder: Path) -> None:
        def export(library: Path) -> Manifest:
            found = Manifest.model_validate_json(_read(self.path, self.manifest, MemberKind.ARTIFACT))
            if found.target != self.manifest.target:
                raise IntegrityError("the library in the pack is for another target than the pack")
            with library.open("wb") as file:
                for chunk in _chunks(self.path, self.manifest, MemberKind.LIBRARY):
                    file.write(chunk)
            return found

        write(folder, self.manifest.target, export)

    def expected(self, model: LocalModel) -> Expected | None:
        """The framework's outputs, for a model with the weights that it had there. Raises IntegrityError."""
        if self.manifest.weights is None or weights_digest(model.weights) != self.manifest.weights:
            return None
        return self._expected()

    def _expected(self) -> Expected:
        with tempfile.TemporaryDirectory(prefix="pitchpipe-pack-") as scratch:
            path = Path(scratch) / "expected.npz"
            path.write_bytes(_read(self.path, self.manifest, MemberKind.EXPECTED))
            try:
                return Expected.read(path)
            except (OSError, ValueError, KeyError) as error:
                raise IntegrityError(f"the outputs in the pack cannot be read: {error}") from error


def _runs_here(target: Target) -> bool:
    """Whether this machine has a device for what is compiled for the target."""
    try:
        here = target_kind.kind_of(target).detect()
    except MeasurementFailed:
        return False
    return here is not None and target_kind.fit(here, target).fits


def open_pack(
    path: str | Path,
    *,
    trusted: Sequence[str | Path | bytes] | None = None,
    target: Target | str = "auto",
    cache: Path | None = None,
) -> Pack:
    """Verifies a pack and reads its schedules, which `load` takes; nothing of it is opened or run here.

    trusted: public keys, as PEM files or texts; None takes those of the folder PITCHPIPE_TRUSTED_KEYS.
    target: what will run it, by default this machine.

    Raises IntegrityError for a file that is not what a trusted key signed, or has expired, InvalidTarget when its code
    might not run here, InvalidInput for a file or a key that cannot be read.
    """
    manifest = verify(path, signing.trusted_keys(trusted))
    here = lookup.resolve_target(target, cache or cache_dir())
    fit = target_kind.fit(here, manifest.target)
    if not fit.fits:
        raise InvalidTarget(f"the pack is for {target_kind.describe(manifest.target)}: {fit.reason}")
    try:
        response = LookupResponse.model_validate_json(_read(Path(path), manifest, MemberKind.SCHEDULES))
    except ValidationError as error:
        raise IntegrityError(f"the schedules in the pack cannot be read: {error.errors()[0]['msg']}") from error
    return Pack(target=manifest.target, response=response, path=Path(path), manifest=manifest)


def verify(path: str | Path, trusted: dict[str, Ed25519PublicKey]) -> PackManifest:
    """The manifest of a pack whose signature, digests, sizes and expiry hold. Raises IntegrityError, InvalidInput."""
    with _opened(Path(path)) as file:
        manifest = _manifest(file, trusted)
        for member in manifest.members:
            digest = hashlib.sha256()
            for chunk in _part(file, member.size):
                digest.update(chunk)
            if digest.hexdigest() != member.digest:
                raise IntegrityError(f"the pack's {member.kind} do not have the digest that was signed")
    if manifest.expires_at <= datetime.now(UTC):
        raise IntegrityError(f"the pack expired at {manifest.expires_at:%Y-%m-%d %H:%M} UTC")
    return manifest


def read_unverified(path: str | Path) -> PackManifest:
    """What a pack claims, whoever signed it; for people to look at."""
    with _opened(Path(path)) as file:
        return _manifest(file, None)


def create_pack(
    path: Path,
    schedules: lookup.Schedules,
    key: Path,
    *,
    model: LocalModel | None = None,
    name: str = "",
    valid_days: int = VALID_DAYS,
    cache: Path | None = None,
) -> PackManifest:
    """Writes a pack of the schedules; with a model also of the library that `load` would build from the two here.

    Where the model's framework is installed, an input set and its outputs go along, on which the library is compared
    before it is used elsewhere; one for a device that is not here is tried there alone. Raises InvalidInput when the file or
    the key cannot be used, WrongResult for a library that differs, and whatever keeps the model from being built.
    """
    private = signing.private_key(key)
    contents = [(MemberKind.SCHEDULES, schedules.response.model_dump_json(by_alias=True).encode())]
    spec = evidence = comparison = None
    if model is not None:
        spec = BuildSpec(model=model, target=schedules.target, traces=schedules.traces)
        evidence = gather(model, {})
        if _runs_here(spec.target):
            folder = make(spec, cache or cache_dir(), evidence=lambda: evidence)
            verdict = proof_of(folder)
            comparison = verdict.comparison if verdict is not None else None
        else:
            folder = compile_only(spec, cache or cache_dir())
            comparison = not_compared("the machine that made the pack has no such device")
            log.warning("%s: nobody tried it: there is no device for it here; whoever loads it tries it", path.name)
        contents.append((MemberKind.ARTIFACT, (folder / "manifest.json").read_bytes()))
        contents.append((MemberKind.LIBRARY, compiled_file(folder, spec.target).read_bytes()))
    if isinstance(evidence, Evidence) and not evidence.expected.weights:
        contents.append((MemberKind.EXPECTED, _expected_bytes(evidence.expected.first())))
    now = datetime.now(UTC)
    carries = contents[-1][0] is MemberKind.EXPECTED
    manifest = PackManifest(
        version=2 if carries else 1,
        weights=weights_digest(model.weights) if carries and model is not None else None,
        comparison=comparison if carries else None,
        name=name or (model.name if model is not None else ""),
        key=signing.key_id(private.public_key()),
        created_at=now,
        expires_at=now + timedelta(days=valid_days),
        target=schedules.target,
        compiler=tuple(identity.versions()),
        recipe=spec.key if spec is not None else None,
        members=tuple(Member(kind=kind, size=len(data), digest=sha256(data)) for kind, data in contents),
    )
    # Members of the second version are left out of a first one, which readers of that version take.
    told = manifest.model_dump(mode="json", by_alias=True, exclude=None if carries else {"weights", "comparison"})
    text = canonical_json(told)
    signature = private.sign(_message(text))
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(b"".join([_HEAD.pack(MAGIC, len(text), signature), text, *(data for _, data in contents)]))
        part.replace(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error
    return manifest


def _expected_bytes(expected: Expected) -> bytes:
    with tempfile.TemporaryDirectory(prefix="pitchpipe-pack-") as scratch:
        path = Path(scratch) / "expected.npz"
        expected.write(path)
        return path.read_bytes()


def _message(manifest: bytes) -> bytes:
    return DOMAIN + struct.pack("<8sI", MAGIC, len(manifest)) + manifest


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error


def _manifest(file: IO[bytes], trusted: dict[str, Ed25519PublicKey] | None) -> PackManifest:
    """Leaves the file at the first member. With trusted keys, one of them has to have signed it."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise IntegrityError("the file is no pack of a version that is known here")
    _, size, signature = _HEAD.unpack(head)
    if size > MAX_MANIFEST_BYTES:
        raise IntegrityError(f"the pack's manifest has {size} bytes; the limit is {MAX_MANIFEST_BYTES}")
    text = file.read(size)
    if len(text) < size:
        raise IntegrityError("the pack is cut short")
    signer = None
    if trusted is not None:
        signer = _signer(trusted, signature, _message(text))
    try:
        manifest = PackManifest.model_validate_json(text)
    except ValidationError as error:
        raise IntegrityError(f"the pack's manifest cannot be read: {error.errors()[0]['msg']}") from error
    if manifest.version not in (1, 2) or (signer is not None and signer != manifest.key):
        raise IntegrityError("the pack's manifest is not of a version that is known here, or names another key")
    rest = os.fstat(file.fileno()).st_size - _HEAD.size - size
    if rest != sum(member.size for member in manifest.members):
        raise IntegrityError("the pack does not have the size that its manifest names")
    return manifest


def _signer(trusted: dict[str, Ed25519PublicKey], signature: bytes, message: bytes) -> str:
    """Every key is tried: which one it is said to be stands in what is not trusted yet."""
    for name, key in trusted.items():
        try:
            signing.check_signature(key, signature, message)
            return name
        except IntegrityError:
            continue
    raise IntegrityError(f"none of the {len(trusted)} trusted keys signed the pack")


def _part(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0:
        chunk = file.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise IntegrityError("the pack is cut short")
        size -= len(chunk)
        yield chunk


def _chunks(path: Path, manifest: PackManifest, kind: MemberKind) -> Iterator[bytes]:
    """A member of a pack that was verified; its digest is checked again, since the file may have been replaced."""
    wanted = [at for at, member in enumerate(manifest.members) if member.kind is kind]
    if len(wanted) != 1:
        raise IntegrityError(f"the pack holds {len(wanted)} members of kind {kind}")
    member = manifest.members[wanted[0]]
    before = sum(earlier.size for earlier in manifest.members[: wanted[0]])
    digest = hashlib.sha256()
    with _opened(path) as file:
        file.seek(-sum(each.size for each in manifest.members) + before, os.SEEK_END)
        for chunk in _part(file, member.size):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != member.digest:
        raise IntegrityError("the pack was changed after it was verified")


def _read(path: Path, manifest: PackManifest, kind: MemberKind) -> bytes:
    member = next((each for each in manifest.members if each.kind is kind), None)
    if member is not None and kind is not MemberKind.LIBRARY and member.size > MAX_SCHEDULES_BYTES:
        raise IntegrityError(f"the pack's {kind} have {member.size} bytes; the limit is {MAX_SCHEDULES_BYTES}")
    return b"".join(_chunks(path, manifest, kind))
