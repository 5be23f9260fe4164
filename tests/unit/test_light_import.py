"""What strangers import stays light."""

import subprocess
import sys

import pitchpipe


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_sdk_loads_no_compiler_no_torch_and_no_database():
    loaded = modules_after("import pitchpipe, pitchpipe.client, pitchpipe.sdk, pitchpipe.cli.main")
    assert not loaded & {"tvm", "torch", "sqlalchemy", "xgboost", "onnx", "numpy", "opentelemetry"}


def test_importing_the_coordinator_loads_no_compiler():
    loaded = modules_after("import service.coordination.coordinator")
    assert not loaded & {"tvm", "torch", "xgboost", "onnx"}


def test_importing_the_service_or_the_worker_loads_nothing_of_the_extra_otel():
    loaded = modules_after("import service.http.app, service.coordination.coordinator, workers.agent.daemon")
    assert not loaded & {"opentelemetry.sdk", "opentelemetry.exporter"}


def test_the_exported_names_are_sorted():
    assert sorted(pitchpipe.__all__) == pitchpipe.__all__
