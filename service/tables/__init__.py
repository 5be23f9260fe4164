"""The tables. A column that SQL compares is a column; what SQL never looks into is one JSON document of a wire type.

    projects ── tokens, models ── jobs ── tasks, events
       │                           └── batches ── candidates ──(leases, lease_results)
       ├── workers ── leases            candidate ──> its record
       ├── workloads, records, best, in_context, cost_models, cost_model_changes
       ├── misses, miss_reports, savings
    tokens ── sessions of the dashboard
    targets, devices, toolchains: values, stored once and pointed to by their digest
    counters: the fence, leases taken back · holders: which coordinator is active

Times are Unix seconds of the database's clock. `target_key` is the SHA-256 of `Target.key`: the key itself can be
longer than an index entry may be. Every row that a user can name carries its project.
"""

from __future__ import annotations

from service.tables.base import Base, Line, spelled
from service.tables.jobs import (
    BrowserSession,
    Job,
    JobEventRow,
    JobTask,
    Model,
    Project,
    StoredDevice,
    StoredTarget,
    StoredToolchain,
    StoredWorkload,
    Token,
)
from service.tables.misses import Miss, MissReportRow
from service.tables.queue import Batch, CandidateRow, Counter, Holder, Lease, LeaseResult, WorkerRow
from service.tables.results import BestRow, CostModelChangeRow, CostModelRow, InContextRow, Record
from service.tables.savings import SavedRow

__all__ = [
    "Base",
    "Batch",
    "BestRow",
    "BrowserSession",
    "CandidateRow",
    "CostModelChangeRow",
    "CostModelRow",
    "Counter",
    "Holder",
    "InContextRow",
    "Job",
    "JobEventRow",
    "JobTask",
    "Lease",
    "LeaseResult",
    "Line",
    "Miss",
    "MissReportRow",
    "Model",
    "Project",
    "Record",
    "SavedRow",
    "StoredDevice",
    "StoredTarget",
    "StoredToolchain",
    "StoredWorkload",
    "Token",
    "WorkerRow",
    "spelled",
]
