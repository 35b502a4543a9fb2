"""Connections: SQLite in WAL mode with every commit on disk, or any database by URL."""

from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, make_url, select
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.errors import StoreError
from orchestrator.store.tables import SCHEMA_VERSION, meta, metadata

BUSY_SECONDS: Final = 20.0  # how long a writer waits for another one
READ_ONLY: Final = {"shardyard_read_only": True}  # execution options of a connection that only reads


def connect(url: str) -> Engine:
    """Open the database and create what is missing. Raises StoreError."""
    try:
        engine = _engine(url)
    except (SQLAlchemyError, ImportError) as error:
        raise StoreError(f"the database URL cannot be used: {error}") from error
    try:
        with engine.begin() as connection:
            metadata.create_all(connection)
            _check_version(connection)
    except SQLAlchemyError as error:
        engine.dispose()
        raise StoreError(f"the database {engine.url!r} cannot be opened: {error}") from error
    except StoreError:
        engine.dispose()
        raise
    return engine


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: `_begin_sqlite` does
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once: a reader that becomes a writer half-way would fail instead of wait."""
    read_only = connection.get_execution_options().get("shardyard_read_only", False)
    connection.exec_driver_sql("BEGIN DEFERRED" if read_only else "BEGIN IMMEDIATE")


def _check_version(connection: Connection) -> None:
    found = connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar()
    if found is None:
        connection.execute(meta.insert().values(key="schema", value=str(SCHEMA_VERSION)))
    elif int(found) != SCHEMA_VERSION:
        raise StoreError(
            f"the database has schema {found}, this shardyard has {SCHEMA_VERSION}: use the version that made it, "
            "or another database"
        )
