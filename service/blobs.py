"""Bytes by digest: models, cost models, artifacts. A local folder, memory, or S3, through obstore."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from pitchpipe.errors import IntegrityError, InvalidInput, NotFound
from pitchpipe.wire.ids import sha256


class Blobs:
    """Content-addressed. Thread-safe. A returned `put` is durable: on disk, or acknowledged by the object store."""

    def __init__(self, url: str) -> None:
        """`file:///folder` or a plain path, `memory:///`, `s3://bucket/prefix` (credentials from the environment)."""
        parts = urlsplit(url)
        self._folder: Path | None = None
        self._store: ObjectStore
        if parts.scheme == "memory":
            self._store = MemoryStore()
        elif parts.scheme in ("", "file"):
            self._folder = Path(unquote(parts.path) if parts.scheme else url).absolute()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(prefix=self._folder)
        elif parts.scheme == "s3":
            self._store = from_url(url)
        else:
            raise InvalidInput(
                f"{parts.scheme} is not a supported blob store; use file:///FOLDER, memory:/// or s3://..."
            )

    def put(self, data: bytes) -> str:
        """Stores the bytes; returns their digest. Idempotent; heals a blob that was damaged."""
        digest = sha256(data)
        if self._size(digest) != len(data) or not self._intact(digest):
            obstore.put(self._store, _path(digest), data)
            self._sync(digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Raises NotFound, and IntegrityError when the bytes are not those that were put."""
        try:
            data = bytes(obstore.get(self._store, _path(digest)).bytes())
        except FileNotFoundError as error:
            raise NotFound(f"no blob {digest}") from error
        if sha256(data) != digest:
            raise IntegrityError(f"blob {digest} is damaged")
        return data

    def _size(self, digest: str) -> int | None:
        try:
            return obstore.head(self._store, _path(digest))["size"]
        except FileNotFoundError:
            return None

    def _intact(self, digest: str) -> bool:
        try:
            return bool(self.get(digest))
        except (IntegrityError, NotFound):
            return False

    def _sync(self, digest: str) -> None:
        # The local store renames a finished file into place but leaves it to the kernel to write it out.
        if self._folder is None:
            return
        path = self._folder / _path(digest)
        for part in (path, path.parent, path.parent.parent, self._folder):
            handle = os.open(part, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _path(digest: str) -> str:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise InvalidInput(f"{digest[:80]!r} is not a digest")
    return f"sha256/{digest[:2]}/{digest[2:]}"
