"""`pitchpipe config show`: every setting of the commands, and of a service started here, and where it came from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Annotated

import typer
from pydantic import SecretStr, ValidationError
from rich.console import Console

from pitchpipe.cli.options import HERE
from pitchpipe.cli.tables import show
from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.errors import InvalidInput
from pitchpipe.processes.cores import usable_cores, with_tvm_threads
from pitchpipe.processes.plugins import MissingExtra, step
from pitchpipe.wire._base import Wire

MASK = "********"
_PASSWORD = re.compile(r"(?<=://)([^/@\s]*):[^/@\s]*@")

config = typer.Typer(no_args_is_help=True, help="Settings, and where they come from.")


class Setting(Wire):
    """A setting as it is in force. Secrets are masked."""

    name: str
    value: str
    origin: str
    """`environment` or `default`."""
    of: str
    """`commands` or `service`."""


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    app.add_typer(config, name="config")
    config.command("show")(show_config)


def show_config(as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False) -> None:
    """Each setting with its value and its origin; secrets are masked. A command's own options come before all of them."""
    found = [*_of_commands(), *_of_service()]
    if as_json:
        print(json.dumps([setting.model_dump(mode="json") for setting in found]))
        return
    rows = [(setting.name, setting.value, setting.origin, setting.of) for setting in found]
    show(Console(), "settings", ("variable", "value", "origin", "of"), rows)


def _of_commands() -> Iterator[Setting]:
    from pitchpipe.deploy.signing import trusted_folder

    defaults = {
        "PITCHPIPE_URL": f"{HERE} for commands, embedded for pitchpipe.tune",
        "PITCHPIPE_TOKEN": "none",
        "PITCHPIPE_CACHE_DIR": str(cache_dir()),
        "PITCHPIPE_TRUSTED_KEYS": str(trusted_folder()),
        "PITCHPIPE_QUIET_LOCK": "one per user in the temporary folder",
        "TVM_NUM_THREADS": f"{usable_cores()}, the cores that this process may use",
        "TVM_BIND_THREADS": f"{with_tvm_threads({})['TVM_BIND_THREADS']}, 1 with a thread for each core of the machine",
    }
    for name, default in defaults.items():
        given = os.environ.get(name)
        value = default if not given else MASK if name == "PITCHPIPE_TOKEN" else masked(given)
        yield Setting(name=name, value=value, origin=_origin(name), of="commands")


def _of_service() -> Iterator[Setting]:
    """Nothing where no service is installed."""
    try:
        settings = step("settings")()
    except MissingExtra:
        return
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(map(str, first["loc"])).upper()
        raise InvalidInput(f"PITCHPIPE_{name}: {first['msg']}; unset it, or see docs/operations.md") from error
    for field in type(settings).model_fields:
        name, value = f"PITCHPIPE_{field.upper()}", getattr(settings, field)
        told = MASK if isinstance(value, SecretStr) else "none" if value is None else masked(str(value))
        yield Setting(name=name, value=told, origin=_origin(name), of="service")


def _origin(name: str) -> str:
    return "environment" if os.environ.get(name) else "default"


def masked(value: str) -> str:
    """The value without the passwords of its URLs."""
    return _PASSWORD.sub(rf"\1:{MASK}@", value)
