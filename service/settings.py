"""Settings of the service: one frozen object, read once at the start from `PITCHPIPE_*` and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from pitchpipe.places import default_blobs, default_database
from pitchpipe.wire.limits import STEP_LIMITS, StepLimits

MIB = 1 << 20


class Settings(BaseSettings):
    """Every field is an environment variable with the prefix PITCHPIPE_; unknown variables are ignored."""

    model_config = SettingsConfigDict(env_prefix="PITCHPIPE_", frozen=True, extra="ignore")

    database_url: str = Field(default_factory=default_database, description="sqlite:///... or postgresql://...")
    blob_url: str = Field(default_factory=default_blobs, description="file:///..., memory:/// or s3://...")
    engine: str = Field(default="local", description="executor of search, ingest and training: local, dask://host:port")

    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    bootstrap_token: SecretStr | None = Field(
        default=None, min_length=32, description="an admin token of `default` only, valid from the start"
    )

    host: str = Field(default="127.0.0.1", description="address the server listens on")
    port: int = Field(default=8734, ge=0, le=65535, description="0 takes a free one")
    engine_workers: int = Field(default=1, ge=1, le=256, description="processes of the local executor")
    split_secs: float = Field(
        default=STEP_LIMITS["split_ingested"].wall_secs, gt=0, description="a model's split that takes longer is killed"
    )
    search_secs: float = Field(
        default=STEP_LIMITS["propose"].wall_secs, gt=0, description="a search for one batch that takes longer is killed"
    )
    training_secs: float = Field(
        default=STEP_LIMITS["train"].wall_secs, gt=0, description="a cost model's training that takes longer is killed"
    )
    step_memory_bytes: int = Field(
        default=8 << 30, ge=256 * MIB, description="what a split, search or training may take"
    )
    graceful_shutdown_secs: int = Field(default=10, ge=0, description="how long SIGTERM waits for running requests")

    max_body_bytes: int = Field(default=8 * MIB, ge=1024, description="cap of a JSON body")
    max_model_bytes: int = Field(default=256 * MIB, ge=1024, description="cap of an uploaded model")
    model_check_secs: float = Field(
        default=25.0, ge=0, description="how long an upload waits to be told whether the model can be tuned"
    )
    body_silence_secs: float = Field(
        default=30.0, gt=0, description="a body that stops coming for this long is refused"
    )
    max_requests: int = Field(default=64, ge=1, description="requests at work at once; one more is shed with 503")
    max_waiting: int = Field(default=1024, ge=1, description="long polls and event streams open at once")
    retry_after_secs: float = Field(default=1.0, gt=0, description="what a shed request is told to wait")
    token_cache_secs: float = Field(
        default=2.0, ge=0, description="how long another replica may honour a revoked token"
    )
    session_secs: float = Field(
        default=43200.0, gt=0, le=2592000, description="how long one stays signed in to the dashboard"
    )

    lease_ttl_secs: float = Field(default=30.0, gt=0, le=3600, description="a lease not renewed for this long expires")
    poll_secs: float | None = Field(
        default=None, gt=0, le=10, description="how often a waiting request looks at the database; see Context"
    )
    worker_timeout_secs: float = Field(default=60.0, gt=0, description="a worker silent for this long is marked lost")
    coordinator_ttl_secs: float = Field(
        default=10.0, gt=0, description="a coordinator silent for this long is replaced"
    )

    def step_limits(self) -> Mapping[str, StepLimits]:
        """The limits of steps, with those that are settings as they are set."""
        wall = {"split_ingested": self.split_secs, "propose": self.search_secs, "train": self.training_secs}
        own = {
            name: replace(STEP_LIMITS[name], wall_secs=secs, memory_bytes=self.step_memory_bytes)
            for name, secs in wall.items()
        }
        return {**STEP_LIMITS, **own}
