"""Ed25519 keys: made, read from PEM files, and named by digest.

Keys are files that other tools read too (`openssl pkey`): PKCS#8 for the private one, SubjectPublicKeyInfo for the public.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import platformdirs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pitchpipe.errors import IntegrityError, InvalidInput
from pitchpipe.wire.ids import sha256

PEM = serialization.Encoding.PEM


def create_keys(path: Path) -> str:
    """Writes a private key that only its owner reads, and `path`.pub; the key's id. Never replaces a file."""
    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = private.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        for name, mode, text in ((path, 0o600, secret), (public_path(path), 0o644, public)):
            with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(text)
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}") from error
    return key_id(private.public_key())


def public_path(path: Path) -> Path:
    """Where the public half of a private key's file lies."""
    return path.with_name(f"{path.name}.pub")


def key_id(key: Ed25519PublicKey) -> str:
    """Digest of the public key."""
    return sha256(key.public_bytes_raw())


def private_key(path: Path) -> Ed25519PrivateKey:
    """Raises InvalidInput for anything but an Ed25519 key without a passphrase."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{path} holds no private key that can be used: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{path} holds a key that is not Ed25519")
    return key


def trusted_keys(trusted: Sequence[str | Path | bytes] | None) -> dict[str, Ed25519PublicKey]:
    """Keys by id: of the PEM files or texts, or, for None, of the folder that `trusted_folder` names.

    Raises InvalidInput for one that cannot be read; a key that is skipped would look like a pack that is forged.
    """
    if trusted is None:
        trusted = sorted(trusted_folder().glob("*.pub"))
    found = {}
    for item in trusted:
        try:
            key = serialization.load_pem_public_key(item if isinstance(item, bytes) else Path(item).read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise InvalidInput(f"a trusted key cannot be read: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidInput("a trusted key is not Ed25519")
        found[key_id(key)] = key
    return found


def own_key() -> Path:
    """The file of this user's own private key, which `trusted_keys` trusts; both are made when they are first asked for.

    Raises InvalidInput where the user's configuration folder, or that of trusted keys, cannot be written.
    """
    path = Path(platformdirs.user_config_dir("pitchpipe")) / "signing.pem"
    trusted = trusted_folder() / "own.pub"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            create_keys(path)
        if not trusted.exists():
            trusted.parent.mkdir(parents=True, exist_ok=True)
            trusted.write_bytes(public_path(path).read_bytes())
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}; make a key by `pitchpipe keys create FILE`") from error
    return path


def trusted_folder() -> Path:
    """PITCHPIPE_TRUSTED_KEYS, or `trusted` in the user's configuration folder."""
    named = os.environ.get("PITCHPIPE_TRUSTED_KEYS")
    return Path(named) if named else Path(platformdirs.user_config_dir("pitchpipe")) / "trusted"


def check_signature(key: Ed25519PublicKey, signature: bytes, message: bytes) -> None:
    """Raises IntegrityError unless the key signed the message."""
    try:
        key.verify(signature, message)
    except InvalidSignature as error:
        raise IntegrityError(f"the signature is not that of key {key_id(key)[:16]}") from error
