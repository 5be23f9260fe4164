"""Identifiers and digests: the one file that makes and parses them.

An identifier is `<prefix>_<26 characters>`: 48 bits of Unix milliseconds, then 80 random bits, in Crockford base 32, so
that identifiers of one prefix sort by creation time. A digest is SHA-256 in lower-case hexadecimal over bytes that do not
depend on process, host or Python version.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time

from pitchpipe.errors import InvalidInput

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
PREFIXES = {
    "prj": "project",
    "tok": "token",
    "ses": "session of the dashboard",
    "mdl": "model",
    "job": "job",
    "lea": "lease",
    "wrk": "worker",
    "rec": "tuning record",
    "cm": "cost model",
}
_PATTERN = re.compile(rf"^({'|'.join(PREFIXES)})_[{_ALPHABET}]{{26}}$")


def new_id(prefix: str) -> str:
    """A fresh identifier; `prefix` is a key of PREFIXES."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def check_id(identifier: str, prefix: str) -> str:
    """Returns `identifier` if it is a well-formed one of that kind; raises InvalidInput otherwise."""
    if not _PATTERN.match(identifier) or not identifier.startswith(f"{prefix}_"):
        raise InvalidInput(f"{identifier[:64]!r} is not a {PREFIXES[prefix]} identifier")
    return identifier


def sha256(data: bytes) -> str:
    """Digest of bytes."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys, no spaces, ASCII only; NaN and infinities are refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def json_digest(value: object) -> str:
    """Digest of a JSON value, independent of key order and spacing."""
    return sha256(canonical_json(value))


def candidate_digest(workload: str, trace: str) -> str:
    """Digest of a candidate: its workload's digest and its trace (JSON text)."""
    return json_digest([workload, json.loads(trace)])
