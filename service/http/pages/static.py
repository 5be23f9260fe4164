"""Scripts, styles and icons. Their addresses name what they contain, so that a browser that has them does not ask again:
a page works although the server is lost between its text and its scripts."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FOLDER = Path(__file__).parents[1] / "static"


def _contents() -> str:
    """Of all the files, 16 hexadecimal digits of the SHA-256 of their names and bytes."""
    found = sha256()
    for file in sorted(path for path in _FOLDER.rglob("*") if path.is_file()):
        name = file.relative_to(_FOLDER).as_posix().encode()
        found.update(sha256(name).digest() + sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


CONTENTS = _contents()
ADDRESS = f"/static/{CONTENTS}"
"""Before a file's path in `service/http/static/`."""


class Static(StaticFiles):
    """The files under any first segment, kept by browsers where it names the contents.

    A page of a server with other files, which stands beside this one during an upgrade, finds them here too.
    """

    def __init__(self) -> None:
        super().__init__(directory=_FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        contents, _, file = path.partition("/")
        response = await super().get_response(file, scope)
        kept = "public, max-age=31536000, immutable" if contents == CONTENTS else "no-cache"
        response.headers["cache-control"] = kept
        return response
