"""First tables.

Revision 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "devices",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("device_class", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_devices")),
    )
    op.create_table(
        "holders",
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_holders")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "targets",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_targets")),
    )
    op.create_table(
        "toolchains",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_toolchains")),
    )
    op.create_table(
        "cost_models",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("target_kind", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_cost_models_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cost_models")),
        sa.UniqueConstraint(
            "project", "target_kind", "version", name=op.f("uq_cost_models_project_target_kind_version")
        ),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_models_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("project", "digest", "format", name=op.f("uq_models_project_digest_format")),
    )
    op.create_index(op.f("ix_models_project_id"), "models", ["project", "id"], unique=False)
    op.create_table(
        "records",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("target_kind", sa.String(), nullable=False),
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("trace", sa.String(), nullable=False),
        sa.Column("secs", sa.Float(precision=53), nullable=True),
        sa.Column("failure", sa.String(), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=True),
        sa.Column("device_key", sa.String(), nullable=False),
        sa.Column("toolchain_key", sa.String(), nullable=False),
        sa.Column("measure_version", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["device_key"], ["devices.key"], name=op.f("fk_records_device_key")),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_records_project")),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_records_target_key")),
        sa.ForeignKeyConstraint(["toolchain_key"], ["toolchains.key"], name=op.f("fk_records_toolchain_key")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_records")),
        sa.UniqueConstraint("project", "id", name=op.f("uq_records_project_id")),
    )
    op.create_index(
        op.f("ix_records_project_target_kind_seq"), "records", ["project", "target_kind", "seq"], unique=False
    )
    op.create_index(
        op.f("ix_records_project_workload_target_key_measure_version"),
        "records",
        ["project", "workload", "target_key", "measure_version"],
        unique=False,
    )
    op.create_table(
        "settled",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("measure_version", sa.Integer(), nullable=False),
        sa.Column("effort", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_settled_project")),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_settled_target_key")),
        sa.PrimaryKeyConstraint("project", "target_key", "workload", "measure_version", name=op.f("pk_settled")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("revoked_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_tokens_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index(op.f("ix_tokens_project"), "tokens", ["project"], unique=False)
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("history", sa.JSON(), nullable=False),
        sa.Column("device_key", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("toolchain_key", sa.String(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("last_seen_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["device_key"], ["devices.key"], name=op.f("fk_workers_device_key")),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_workers_project")),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_workers_target_key")),
        sa.ForeignKeyConstraint(["toolchain_key"], ["toolchains.key"], name=op.f("fk_workers_toolchain_key")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_workers_project_name")),
    )
    op.create_table(
        "workloads",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("ir", sa.String(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_workloads_project")),
        sa.PrimaryKeyConstraint("project", "digest", name=op.f("pk_workloads")),
    )
    op.create_table(
        "best",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("measure_version", sa.Integer(), nullable=False),
        sa.Column("device_class", sa.String(), nullable=False),
        sa.Column("record", sa.String(), nullable=True),
        sa.Column("trace", sa.String(), nullable=False),
        sa.Column("secs", sa.Float(precision=53), nullable=False),
        sa.Column("secs_low", sa.Float(precision=53), nullable=False),
        sa.Column("secs_high", sa.Float(precision=53), nullable=False),
        sa.Column("baseline_secs", sa.Float(precision=53), nullable=False),
        sa.Column("toolchain", sa.String(), nullable=False),
        sa.Column("confirmed_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(
            ["project", "record"], ["records.project", "records.id"], name=op.f("fk_best_project_record")
        ),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_best_project")),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_best_target_key")),
        sa.PrimaryKeyConstraint(
            "project", "target_key", "workload", "measure_version", "device_class", name=op.f("pk_best")
        ),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("error_code", sa.String(), nullable=True),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("failed_trials", sa.Integer(), nullable=False),
        sa.Column("spent_secs", sa.Float(precision=53), nullable=False),
        sa.Column("last_event", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("request_digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name=op.f("fk_jobs_model")),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_jobs_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("project", "idempotency_key", name=op.f("uq_jobs_project_idempotency_key")),
    )
    op.create_index(
        "ix_jobs_active",
        "jobs",
        ["id"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    )
    op.create_index(op.f("ix_jobs_project_id"), "jobs", ["project", "id"], unique=False)
    op.create_table(
        "batches",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("incumbent_secs", sa.Float(precision=53), nullable=True),
        sa.Column("observed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_batches_job")),
        sa.ForeignKeyConstraint(
            ["project", "workload"], ["workloads.project", "workloads.digest"], name=op.f("fk_batches_project_workload")
        ),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_batches_project")),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_batches_target_key")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index(op.f("ix_batches_job_observed_id"), "batches", ["job", "observed", "id"], unique=False)
    op.create_table(
        "events",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_events_job")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "tasks",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("failed_trials", sa.Integer(), nullable=False),
        sa.Column("reused", sa.Boolean(), nullable=False),
        sa.Column("untuned_secs", sa.Float(precision=53), nullable=True),
        sa.Column("tuned_secs", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_tasks_job")),
        sa.ForeignKeyConstraint(
            ["project", "workload"], ["workloads.project", "workloads.digest"], name=op.f("fk_tasks_project_workload")
        ),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_tasks_target_key")),
        sa.PrimaryKeyConstraint("job", "workload", "target_key", name=op.f("pk_tasks")),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("batch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["batch"], ["batches.id"], name=op.f("fk_leases_batch")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_leases_job")),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_leases_project")),
        sa.ForeignKeyConstraint(["worker"], ["workers.id"], name=op.f("fk_leases_worker")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
        sa.UniqueConstraint("fence", name=op.f("uq_leases_fence")),
    )
    op.create_index(
        "ix_leases_open",
        "leases",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("state = 'open'"),
        sqlite_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "candidates",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("batch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("measure_version", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("trace", sa.String(), nullable=False),
        sa.Column("predicted", sa.Float(precision=53), nullable=True),
        sa.Column("features", sa.LargeBinary(), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(), nullable=True),
        sa.Column("record", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["batch"], ["batches.id"], name=op.f("fk_candidates_batch")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_candidates_job")),
        sa.ForeignKeyConstraint(
            ["lease"], ["leases.id"], name=op.f("fk_candidates_lease"), initially="DEFERRED", deferrable=True
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
        sa.UniqueConstraint("batch", "digest", name=op.f("uq_candidates_batch_digest")),
    )
    op.create_index(op.f("ix_candidates_job_state"), "candidates", ["job", "state"], unique=False)
    op.create_index(op.f("ix_candidates_lease"), "candidates", ["lease"], unique=False)
    op.create_index(
        "ix_candidates_queue",
        "candidates",
        ["project", "target_key", "priority", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued'"),
        sqlite_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "uq_candidates_search",
        "candidates",
        ["project", "workload", "target_key", "measure_version", "digest"],
        unique=True,
        postgresql_where=sa.text("purpose = 'search' AND state <> 'cancelled'"),
        sqlite_where=sa.text("purpose = 'search' AND state <> 'cancelled'"),
    )
    op.create_table(
        "lease_results",
        sa.Column("lease", sa.String(), nullable=False),
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("body_digest", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name=op.f("fk_lease_results_lease")),
        sa.PrimaryKeyConstraint("lease", "candidate", name=op.f("pk_lease_results")),
    )
    # Fences are counted from here on; the row is never deleted.
    op.execute("INSERT INTO counters (name, value) VALUES ('fence', 0)")


def downgrade() -> None:
    op.drop_table("lease_results")
    op.drop_index(
        "uq_candidates_search",
        table_name="candidates",
        postgresql_where=sa.text("purpose = 'search' AND state <> 'cancelled'"),
        sqlite_where=sa.text("purpose = 'search' AND state <> 'cancelled'"),
    )
    op.drop_index(
        "ix_candidates_queue",
        table_name="candidates",
        postgresql_where=sa.text("state = 'queued'"),
        sqlite_where=sa.text("state = 'queued'"),
    )
    op.drop_index(op.f("ix_candidates_lease"), table_name="candidates")
    op.drop_index(op.f("ix_candidates_job_state"), table_name="candidates")
    op.drop_table("candidates")
    op.drop_index(
        "ix_leases_open",
        table_name="leases",
        postgresql_where=sa.text("state = 'open'"),
        sqlite_where=sa.text("state = 'open'"),
    )
    op.drop_table("leases")
    op.drop_table("tasks")
    op.drop_table("events")
    op.drop_index(op.f("ix_batches_job_observed_id"), table_name="batches")
    op.drop_table("batches")
    op.drop_index(op.f("ix_jobs_project_id"), table_name="jobs")
    op.drop_index(
        "ix_jobs_active",
        table_name="jobs",
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    )
    op.drop_table("jobs")
    op.drop_table("best")
    op.drop_table("workloads")
    op.drop_table("workers")
    op.drop_index(op.f("ix_tokens_project"), table_name="tokens")
    op.drop_table("tokens")
    op.drop_table("settled")
    op.drop_index(op.f("ix_records_project_workload_target_key_measure_version"), table_name="records")
    op.drop_index(op.f("ix_records_project_target_kind_seq"), table_name="records")
    op.drop_table("records")
    op.drop_index(op.f("ix_models_project_id"), table_name="models")
    op.drop_table("models")
    op.drop_table("cost_models")
    op.drop_table("toolchains")
    op.drop_table("targets")
    op.drop_table("projects")
    op.drop_table("holders")
    op.drop_table("devices")
    op.drop_table("counters")
