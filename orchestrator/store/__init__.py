"""The database: SQLAlchemy Core, SQLite (WAL) by default, PostgreSQL by URL. All SQL lies in this package."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Select, and_, func, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from orchestrator.errors import IdempotencyConflictError, JobNotFoundError, StoreError
from orchestrator.job import TERMINAL_STATES, Generation, GenerationState, Job, JobState, TimelineEvent
from orchestrator.job_queries import JobList, JobQuery, LossPoint
from orchestrator.store.engine import READ_ONLY, connect
from orchestrator.store.rows import event_of, event_row, generation_of, job_of, job_row
from orchestrator.store.tables import (
    events,
    generations,
    idempotency,
    jobs,
    losses,
    origins,
    report_tokens,
    samples,
)
from orchestrator.store.unit import Unit, generation_row_of
from workers.contract.events import Event, EventKind, Sample
from workers.contract.launch import Origin

__all__ = ["Store", "Unit"]


class Store:
    """One database. Thread-safe. Every method raises StoreError where the database cannot be used."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> "Store":
        """Connect and create what is missing. Raises StoreError."""
        return cls(connect(url))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def unit(self, job_id: str) -> Iterator[Unit]:
        """Lock a job: what the block writes is committed at its end, or not at all. Raises JobNotFoundError."""
        with self._writing() as connection:
            yield Unit(connection, job_id)

    def create(
        self, job: Job, told: Sequence[Event], *, key: str | None, digest: str, origin: Origin | None = None
    ) -> tuple[Job, bool]:
        """Add a job, and what it begins with if it is a fork; an idempotency key that is known gives its job back, and False.

        Raises IdempotencyConflictError where the key came with another digest.
        """
        try:
            with self._writing() as connection:
                known = None if key is None else _keyed(connection, key, digest)
                if known is not None:
                    return known, False
                values = job_row(job) | {"version": 0, "last_position": len(told)}
                connection.execute(insert(jobs).values(values))
                for position, event in enumerate(told, start=1):
                    connection.execute(insert(events).values(event_row(job.id, position, "service", event)))
                if origin is not None:
                    connection.execute(insert(origins).values(job_id=job.id, body=origin.to_json()))
                if key is not None:
                    connection.execute(insert(idempotency).values(key=key, job_id=job.id, digest=digest))
                return _job(connection, job.id), True
        except StoreError as error:
            # Two submits with one key at once, on a database that does not serialise them: the other one won.
            if key is not None and isinstance(error.__cause__, IntegrityError):
                with self._reading() as connection:
                    known = _keyed(connection, key, digest)
                if known is not None:
                    return known, False
            raise

    def job(self, job_id: str) -> Job:
        """Return the job with this id. Raises JobNotFoundError."""
        with self._reading() as connection:
            return _job(connection, job_id)

    def find(self, reference: str) -> Job:
        """Return the job with this id, else the newest one of this name. Raises JobNotFoundError."""
        newest = select(jobs.c.id).where(jobs.c.name == reference).order_by(jobs.c.number.desc()).limit(1)
        with self._reading() as connection:
            by_id = connection.execute(select(jobs.c.id).where(jobs.c.id == reference)).scalar()
            found = by_id or connection.execute(newest).scalar()
            if found is None:
                raise JobNotFoundError(reference)
            return _job(connection, found)

    def generation(self, job_id: str, number: int) -> Generation | None:
        """Return a generation of a job; None where there is none of this number."""
        with self._reading() as connection:
            row = generation_row_of(connection, job_id, number)
        return None if row is None else generation_of(row)

    def list_jobs(self, query: JobQuery) -> JobList:
        """One page, newest first."""
        wanted = _with_generation().order_by(jobs.c.number.desc()).limit(query.limit + 1)
        if query.states:
            wanted = wanted.where(jobs.c.state.in_([state.value for state in query.states]))
        if query.name is not None:
            wanted = wanted.where(jobs.c.name == query.name)
        if query.before is not None:
            wanted = wanted.where(jobs.c.number < query.before)
        found = self._jobs(wanted)
        page = found[: query.limit]
        return JobList(jobs=page, next_before=page[-1].number if len(found) > len(page) else None)

    def open_jobs(self) -> tuple[Job, ...]:
        """Every job that has not ended or may still hold something, oldest first."""
        wanted = jobs.c.state.not_in([state.value for state in TERMINAL_STATES])
        held = generations.c.state != GenerationState.RELEASED.value
        return self._jobs(_with_generation().where(wanted | held).order_by(jobs.c.number))

    def _jobs(self, wanted: Select[Any]) -> tuple[Job, ...]:
        with self._reading() as connection:
            rows = connection.execute(wanted).all()
            numbered = {
                (row.job_id, row.number): row
                for row in connection.execute(
                    select(generations).where(generations.c.job_id.in_([row.id for row in rows]))
                )
            }
        return tuple(job_of(row, numbered.get((row.id, row.generation))) for row in rows)

    def counts(self) -> Mapping[JobState, int]:
        """Jobs by state; a state without any is there with 0."""
        counted = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with self._reading() as connection:
            found: dict[str, int] = {row[0]: row[1] for row in connection.execute(counted)}
        return {state: found.get(state.value, 0) for state in JobState}

    def events(self, job_id: str, *, after: int, limit: int) -> tuple[TimelineEvent, ...]:
        """Events with a position above `after`, oldest first."""
        wanted = (
            select(events)
            .where(events.c.job_id == job_id, events.c.position > after)
            .order_by(events.c.position)
            .limit(limit)
        )
        with self._reading() as connection:
            return tuple(event_of(row) for row in connection.execute(wanted))

    def samples(self, job_id: str) -> tuple[tuple[int, Sample], ...]:
        """Return the newest sample of each rank that ever spoke, with its generation, by rank."""
        wanted = select(samples).where(samples.c.job_id == job_id).order_by(samples.c.rank)
        with self._reading() as connection:
            return tuple((row.generation, Sample.from_json(row.body)) for row in connection.execute(wanted))

    def losses(self, job_id: str) -> tuple[LossPoint, ...]:
        """Return the loss curve, oldest step first."""
        wanted = select(losses).where(losses.c.job_id == job_id).order_by(losses.c.step)
        with self._reading() as connection:
            return tuple(LossPoint(step=row.step, loss=row.loss) for row in connection.execute(wanted))

    def newest_event(self, job_id: str, kind: EventKind) -> Event | None:
        """Return the newest event of a kind."""
        wanted = (
            select(events)
            .where(events.c.job_id == job_id, events.c.kind == kind.value)
            .order_by(events.c.position.desc())
            .limit(1)
        )
        with self._reading() as connection:
            row = connection.execute(wanted).one_or_none()
        return None if row is None else event_of(row).event

    def count_events(self, job_id: str, kind: EventKind) -> Mapping[str | None, int]:
        """Count a job's events of a kind by failure class (None where it has none)."""
        counted = (
            select(events.c.failure_class, func.count())
            .where(events.c.job_id == job_id, events.c.kind == kind.value)
            .group_by(events.c.failure_class)
        )
        with self._reading() as connection:
            return {row[0]: row[1] for row in connection.execute(counted)}

    def known(self, key: str, digest: str) -> Job | None:
        """Return the job that an idempotency key made. Raises IdempotencyConflictError where it came with another digest."""
        with self._reading() as connection:
            return _keyed(connection, key, digest)

    def origin(self, job_id: str) -> Origin | None:
        """Return the checkpoint of another job that a fork begins with; None for any other job."""
        with self._reading() as connection:
            body = connection.execute(select(origins.c.body).where(origins.c.job_id == job_id)).scalar()
        return None if body is None else Origin.from_json(body)

    def may_report(self, job_id: str, generation: int, digest: str) -> bool:
        """Whether a token with this digest was given to this generation."""
        wanted = select(report_tokens.c.generation, report_tokens.c.job_id).where(
            report_tokens.c.digest == digest
        )
        with self._reading() as connection:
            row = connection.execute(wanted).one_or_none()
        return row is not None and (row.job_id, row.generation) == (job_id, generation)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the database does not take a write: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(**READ_ONLY) as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the database does not answer: {error}") from error


def _with_generation() -> Select[Any]:
    """Select jobs so that conditions may name their newest generation."""
    newest = and_(generations.c.job_id == jobs.c.id, generations.c.number == jobs.c.generation)
    return select(jobs).select_from(jobs.outerjoin(generations, newest))


def _job(connection: Connection, job_id: str) -> Job:
    row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
    if row is None:
        raise JobNotFoundError(job_id)
    return job_of(row, generation_row_of(connection, job_id, row.generation))


def _keyed(connection: Connection, key: str, digest: str) -> Job | None:
    """Return the job that the key made. Raises IdempotencyConflictError where it came with another digest."""
    row = connection.execute(select(idempotency).where(idempotency.c.key == key)).one_or_none()
    if row is None:
        return None
    if row.digest != digest:
        raise IdempotencyConflictError(key, row.job_id)
    return _job(connection, row.job_id)
