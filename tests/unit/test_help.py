"""What the command line says by itself: examples, completion, settings, and what to type after an error."""

from __future__ import annotations

import json
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import pitchpipe
from pitchpipe import errors
from pitchpipe.cli import entry, hints
from pitchpipe.cli.config_commands import MASK, masked
from pitchpipe.cli.examples import EXAMPLES
from pitchpipe.cli.main import app, main
from pitchpipe.client import Client
from pitchpipe.wire.job import JobState

COMMANDS: Any = typer.main.get_command(app)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    groups = getattr(command, "commands", None)
    if groups is None:
        yield " ".join(path)
    else:
        for name, inner in groups.items():
            yield from leaves(inner, (*path, name))


def parsed(line: str) -> None:
    """Raises a usage error for a line that is no command."""
    command, (_, *words) = COMMANDS, shlex.split(line)
    while (inner := getattr(command, "commands", None)) is not None:
        command = inner[words.pop(0)]
    command.make_context(command.name, words)


def test_every_command_has_an_example_and_nothing_else_has() -> None:
    assert set(EXAMPLES) == set(leaves(COMMANDS))


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_is_a_call_of_its_command(path: str) -> None:
    assert EXAMPLES[path].startswith(f"pitchpipe {path}")
    parsed(EXAMPLES[path])


def test_the_help_of_a_command_ends_with_its_example() -> None:
    told = CliRunner().invoke(app, ["jobs", "cancel", "--help"], terminal_width=200).output
    assert EXAMPLES["jobs cancel"] in told


def test_what_hints_name_are_commands() -> None:
    for hint in hints._HINTS.values():
        for line in re.findall(r"`(pitchpipe [^`]+)`", hint):
            path = re.match(r"pitchpipe ((?:[a-z]+ ?)+)", line)
            assert path is not None
            assert any(path[1].strip().startswith(leaf) for leaf in leaves(COMMANDS)), line


def test_an_error_is_followed_by_what_to_type_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any) -> None:
        raise errors.Unauthorized("the token was revoked")

    monkeypatch.setattr(Client, "job", refused)
    with pytest.raises(SystemExit) as ended:
        main(["jobs", "show", "job_1"])
    first, second = capsys.readouterr().err.splitlines()
    assert (ended.value.code, first) == (4, "pitchpipe: A valid token is needed: the token was revoked")
    assert second.startswith("next: set PITCHPIPE_TOKEN")


def test_an_interrupted_command_ends_with_130_and_says_what_to_type_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["jobs", "watch", "job_1"])
    first, second = capsys.readouterr().err.splitlines()
    assert (ended.value.code, first) == (130, "pitchpipe: interrupted")
    assert second.startswith("next: the job goes on; `pitchpipe jobs watch job_1`")


def test_an_interrupt_while_the_command_line_is_imported_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "pitchpipe.cli.main")
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupted)])
    with pytest.raises(SystemExit) as ended:
        entry.run()
    assert ended.value.code == 130


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"pitchpipe {pitchpipe.__version__}\n")


def test_an_input_error_says_it_all_in_one_line() -> None:
    assert hints.hint(errors.InvalidInput("no")) is None
    assert "models check" in str(hints.hint(errors.UnsupportedShape("no")))


def test_after_tuning_the_next_commands_name_the_database_unless_it_is_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PITCHPIPE_DATABASE_URL", "sqlite:///own.db")
    assert "`pitchpipe dashboard` shows" in hints.after_tuning("sqlite:///own.db")
    assert "`pitchpipe dashboard other.db` shows" in hints.after_tuning("sqlite:///other.db")
    assert "dashboard" not in hints.after_tuning("postgresql://tuner@db/pitchpipe")


def test_the_shell_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"_PITCHPIPE_COMPLETE": "complete_bash", "COMP_WORDS": "pitchpipe sche", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, prog_name="pitchpipe", env=given).output.split() == ["schedules"]


def completed(line: str) -> list[str]:
    """What the shell offers for the last word of a line."""
    words = line.split(" ")
    given = {"_PITCHPIPE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(app, prog_name="pitchpipe", env=given)
    assert result.exit_code == 0
    return result.output.split()


@pytest.mark.parametrize("command", ["jobs show", "jobs cancel", "pause", "report", "compare job_older"])
def test_the_shell_completes_jobs_the_newest_first(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def jobs(client: Client) -> Iterator[Any]:
        asked.append((client.url, client.token))
        for name in ("job_newer", "job_older", "other"):
            yield SimpleNamespace(id=name, model_name="net.onnx", state=JobState.TUNING)

    monkeypatch.setattr(Client, "jobs", jobs)
    monkeypatch.setenv("PITCHPIPE_URL", "http://tuner:1")
    monkeypatch.setenv("PITCHPIPE_TOKEN", "secret")
    assert completed(f"pitchpipe {command} job_") == ["job_newer", "job_older"]
    assert completed(f"pitchpipe {command} --url http://other:2 job_n") == ["job_newer"]
    assert asked == [("http://tuner:1", "secret"), ("http://other:2", "secret")]


def test_the_shell_completes_no_jobs_of_a_service_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert completed(f"pitchpipe jobs show --url http://127.0.0.1:{port} job_") == []


def test_settings_are_shown_with_their_origin_and_without_their_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PITCHPIPE_TOKEN", "secret-token")
    monkeypatch.setenv("PITCHPIPE_DATABASE_URL", "postgresql://tuner:secret-word@db/pitchpipe")
    monkeypatch.setenv("PITCHPIPE_BOOTSTRAP_TOKEN", "secret" * 8)
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    with pytest.raises(SystemExit):
        main(["config", "show", "--json"])
    told = capsys.readouterr().out
    assert "secret" not in told
    found = {setting["name"]: setting for setting in json.loads(told)}
    assert found["PITCHPIPE_DATABASE_URL"]["value"] == f"postgresql://tuner:{MASK}@db/pitchpipe"
    assert found["PITCHPIPE_TOKEN"] == {
        "name": "PITCHPIPE_TOKEN",
        "value": MASK,
        "origin": "environment",
        "of": "commands",
    }
    assert found["PITCHPIPE_URL"]["origin"] == found["PITCHPIPE_PORT"]["origin"] == "default"
    assert found["PITCHPIPE_PORT"]["value"] == "8734"


def test_a_setting_that_is_not_valid_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PITCHPIPE_PORT", "none")
    with pytest.raises(SystemExit) as ended:
        main(["config", "show"])
    assert ended.value.code == 2
    assert "PITCHPIPE_PORT" in capsys.readouterr().err


def test_passwords_of_urls_are_masked() -> None:
    assert masked("dask://host:8786") == "dask://host:8786"
    assert masked("s3://key:word@host/bucket") == f"s3://key:{MASK}@host/bucket"
