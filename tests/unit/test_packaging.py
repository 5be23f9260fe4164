"""The lock files, images and units say the same as pyproject.toml and the settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pitchpipe
from service.settings import Settings

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
LOCKS = {
    "requirements.lock": [
        *PROJECT["project"]["dependencies"],
        *(entry for extra in ("server", "compiler", "dask", "otel") for entry in EXTRAS[extra]),
        *(entry for group in ("build", "dev") for entry in GROUPS[group] if isinstance(entry, str)),
    ],
    "deploy/server.lock": [*PROJECT["project"]["dependencies"], *EXTRAS["server"]],
    "deploy/worker.lock": [*PROJECT["project"]["dependencies"], *EXTRAS["compiler"]],
    "deploy/worker-cuda.lock": [*PROJECT["project"]["dependencies"], *EXTRAS["compiler"], *EXTRAS["cuda"]],
    "deploy/coordinator.lock": [
        *PROJECT["project"]["dependencies"],
        *(entry for extra in ("server", "compiler", "dask") for entry in EXTRAS[extra]),
    ],
    "deploy/build.lock": GROUPS["build"],
    "benchmarks/requirements.lock": GROUPS["bench"],
}


def pins(lock: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ]+)", (ROOT / lock).read_text(), re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_a_fitting_version_of_everything_that_is_asked_for(lock: str) -> None:
    locked = pins(lock)
    for text in LOCKS[lock]:
        wanted = Requirement(text)
        versions = locked.get(canonicalize_name(wanted.name), set())
        assert versions, f"{wanted.name} is not in {lock}: run `make lock`"
        assert all(version in wanted.specifier for version in versions), (
            f"{text} is not what {lock} has: run `make lock`"
        )


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_hashes_and_no_registry(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE)
    for entry in re.split(r"\n(?=[a-z])", text.strip()):
        assert "--hash=sha256:" in entry


def test_the_locks_agree_on_every_version() -> None:
    main = pins("requirements.lock")
    for lock in LOCKS:
        for name, versions in pins(lock).items():
            assert versions <= main.get(name, versions), f"{name} in {lock} is not the version of requirements.lock"


def test_the_server_is_installed_without_a_compiler_or_torch() -> None:
    assert not pins("deploy/server.lock").keys() & {
        "apache-tvm",
        "apache-tvm-ffi",
        "torch",
        "xgboost",
        "xgboost-cpu",
        "numpy",
    }
    assert "apache-tvm" in pins("deploy/worker.lock")


def test_every_package_of_the_wheel_is_copied_into_the_images() -> None:
    for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"COPY {package} {package}\n" in DOCKERFILE
        assert f"!{package}\n" in (ROOT / ".dockerignore").read_text()


def test_no_image_runs_as_root() -> None:
    bases = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)}
    for role in ("server", "coordinator", "worker"):
        assert bases[role] == "runtime"
    runtime = DOCKERFILE[DOCKERFILE.index(" AS runtime") : DOCKERFILE.index("FROM runtime AS")]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", runtime, re.MULTILINE)


def test_compose_builds_stages_that_exist_and_sets_settings_that_exist() -> None:
    known = {f"PITCHPIPE_{name.upper()}" for name in Settings.model_fields}
    known |= {"PITCHPIPE_URL", "PITCHPIPE_TOKEN", "PITCHPIPE_QUIET_LOCK"}
    for name, service in COMPOSE["services"].items():
        if name == "postgres":
            continue
        assert f" AS {service['build']['target']}\n" in DOCKERFILE
        assert set(service["environment"]) <= known
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_whatever_computes_in_compose_shares_one_quiet_lock_that_its_user_may_write() -> None:
    folders = set()
    for name in ("coordinator", "worker"):
        service = COMPOSE["services"][name]
        folder = str(Path(service["environment"]["PITCHPIPE_QUIET_LOCK"]).parent)
        mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in service["volumes"]}
        assert mounts[folder] in COMPOSE["volumes"]
        folders.add((mounts[folder], service["environment"]["PITCHPIPE_QUIET_LOCK"]))
    ((_, lock),) = folders
    assert re.search(rf"install --directory --owner=pitchpipe .*{re.escape(str(Path(lock).parent))}$", DOCKERFILE, re.M)


def test_the_code_knows_the_version_of_the_project() -> None:
    assert pitchpipe.__version__ == PROJECT["project"]["version"]
