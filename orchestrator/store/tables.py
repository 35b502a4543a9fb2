"""The tables. Additive changes only: `create_all` adds what is missing, `SCHEMA_VERSION` refuses what is newer."""

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

SCHEMA_VERSION: Final = 1


class Moment(TypeDecorator[datetime]):
    """A UTC time as ISO text: SQLite has no type that keeps the offset."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        """Refuse a time without an offset: it means something else on every machine."""
        if value is None:
            return None
        assert value.tzinfo is not None, "times have an offset"
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Read what was bound."""
        return None if value is None else datetime.fromisoformat(value)


class Number(TypeDecorator[float]):
    """A float as its shortest text: SQLite keeps NaN as NULL, and a loss that is not a number must be seen."""

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> str | None:
        """Write what `process_result_value` reads back bit by bit."""
        return None if value is None else repr(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        """Read what was bound."""
        return None if value is None else float(value)


metadata = MetaData()

meta = Table(
    "meta", metadata, Column("key", String(40), primary_key=True), Column("value", Text, nullable=False)
)

jobs = Table(
    "jobs",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("name", String(63), nullable=False),
    Column("state", String(20), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("last_position", Integer, nullable=False),  # of its timeline
    Column("reason", Text, nullable=False),
    Column("desired", String(10), nullable=False),
    Column("cancelled_by", Text, nullable=False),
    Column("awaits_grant", Boolean, nullable=False),
    Column("delay_seconds", Float, nullable=False),
    Column("spec", Text, nullable=False),
    Column("run_dir", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("furthest_step", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("counters", Text, nullable=False),
    Column("verdict", Text),
    Column("result", Text),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("next_sequence", Integer, nullable=False),
    Index("jobs_by_state", "state", "number"),
    Index("jobs_by_name", "name", "number"),
    sqlite_autoincrement=True,  # a number is never given twice
)


def _job_id(**options: Any) -> Column[str]:
    return Column("job_id", String(40), ForeignKey("jobs.id"), **options)


generations = Table(
    "generations",
    metadata,
    _job_id(primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("workers", Integer, nullable=False),
    Column("cpus_per_worker", Integer, nullable=False),
    Column("gpus_per_worker", Integer, nullable=False),
    Column("state", String(20), nullable=False, index=True),
    Column("final_phase", String(20)),
    Column("has_reported", Boolean, nullable=False),
    Column("acknowledged", Integer, nullable=False),
    Column("granted_at", Moment, nullable=False),
)

origins = Table(
    "origins",
    metadata,
    _job_id(primary_key=True),  # of a fork
    Column("body", Text, nullable=False),
)

report_tokens = Table(
    "report_tokens",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256: the token itself is kept nowhere
    _job_id(nullable=False),
    Column("generation", Integer, nullable=False),
)

events = Table(
    "events",
    metadata,
    _job_id(primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("source", String(10), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("kind", String(30), nullable=False),
    Column("failure_class", String(30)),  # of a restart
    Column("body", Text, nullable=False),
    UniqueConstraint("job_id", "source", "generation", "sequence"),
    Index("events_by_kind", "kind", "job_id", "position"),
)

samples = Table(
    "samples",
    metadata,
    _job_id(primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False),
    Column("body", Text, nullable=False),
)

losses = Table(
    "losses",
    metadata,
    _job_id(primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("loss", Number, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("key", String(255), primary_key=True),
    _job_id(nullable=False),
    Column("digest", String(64), nullable=False),
)
