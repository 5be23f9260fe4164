"""An example for each command, which its `--help` ends with."""

from __future__ import annotations

import typer

JOB = "job_01m7z"
EXAMPLES = {
    "tune": "pitchpipe tune model.onnx --seconds 60",
    "doctor": "pitchpipe doctor --json",
    "report": f"pitchpipe report {JOB} --html report.html",
    "compare": f"pitchpipe compare {JOB} job_01m80 --markdown",
    "pause": f"pitchpipe pause {JOB}",
    "resume": f"pitchpipe resume {JOB}",
    "minify": "pitchpipe minify model.onnx",
    "lock": "pitchpipe lock encoder.onnx decoder.onnx --check",
    "coverage": "pitchpipe coverage model.onnx",
    "profile": "pitchpipe profile model.onnx --trace trace.json",
    "config show": "pitchpipe config show --json",
    "jobs submit": "pitchpipe jobs submit model.onnx --trials 500 --url http://tuner:8734",
    "jobs list": "pitchpipe jobs list",
    "jobs show": f"pitchpipe jobs show {JOB}",
    "jobs watch": f"pitchpipe jobs watch {JOB} --timeout 600",
    "jobs cancel": f"pitchpipe jobs cancel {JOB}",
    "jobs extend": f"pitchpipe jobs extend {JOB} --trials 200",
    "jobs pause": f"pitchpipe jobs pause {JOB}",
    "jobs resume": f"pitchpipe jobs resume {JOB}",
    "schedules lookup": "pitchpipe schedules lookup model.onnx --target cuda",
    "schedules explain": "pitchpipe schedules explain model.onnx",
    "schedules export": f"pitchpipe schedules export {JOB} metaschedule/",
    "schedules import": "pitchpipe schedules import metaschedule/",
    "schedules upgrade": "pitchpipe schedules upgrade --limit 20 --budget-seconds 600",
    "schedules saved": "pitchpipe schedules saved --days 30",
    "schedules pin": f"pitchpipe schedules pin {JOB}",
    "records list": f"pitchpipe records list --served {JOB}",
    "records show": "pitchpipe records show rec_01m7z --code",
    "records replay": "pitchpipe records replay rec_01m7z",
    "workers list": "pitchpipe workers list",
    "models list": "pitchpipe models list",
    "models check": "pitchpipe models check model.onnx",
    "misses list": "pitchpipe misses list --limit 10",
    "misses budget": "pitchpipe misses budget 2000",
    "cost-models list": "pitchpipe cost-models list --kind llvm",
    "cost-models show": "pitchpipe cost-models show cm_01m7z",
    "cost-models promote": "pitchpipe cost-models promote cm_01m7z",
    "cost-models rollback": "pitchpipe cost-models rollback cm_01m7z",
    "pack create": "pitchpipe pack create model.onnx --out model.pitchpipe --key signing.pem --objects",
    "pack verify": "pitchpipe pack verify model.pitchpipe --trusted signing.pem.pub",
    "pack show": "pitchpipe pack show model.pitchpipe",
    "keys create": "pitchpipe keys create signing.pem",
    "dashboard": "pitchpipe dashboard tuned.db",
    "server": "pitchpipe server --with-coordinator --port 8734",
    "coordinator": "pitchpipe coordinator --database postgresql://tuner@db/pitchpipe",
    "worker": "pitchpipe worker --url http://tuner:8734 --target cuda:1",
    "tokens create": "pitchpipe tokens create --project vision --scope worker --label 'rack 4'",
    "tokens list": "pitchpipe tokens list",
    "tokens revoke": "pitchpipe tokens revoke tok_01m7z",
    "db upgrade": "pitchpipe db upgrade --database sqlite:///tuned.db",
    "db check": "pitchpipe db check",
}
"""By the command's path below `pitchpipe`."""


def attach(app: typer.Typer, path: str = "") -> None:
    """Gives each command that the app has by now its example. A command without one stays as it is."""
    for command in app.registered_commands:
        example = EXAMPLES.get(f"{path}{command.name}")
        command.epilog = command.epilog or (f"Example: {example}" if example else None)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            attach(group.typer_instance, f"{path}{group.name} ")
