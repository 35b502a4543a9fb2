"""One job, locked, in one transaction: what is decided from its row is written before anybody else reads it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from orchestrator.draft import Transition
from orchestrator.errors import JobNotFoundError, StaleVersionError
from orchestrator.job import Generation, Job, Source
from orchestrator.job_queries import LossPoint
from orchestrator.store.rows import event_row, generation_row, job_of, job_row
from orchestrator.store.tables import events, generations, jobs, losses, report_tokens, samples
from workers.contract.events import Event, Sample

LOSS_POINTS: Final = 2000  # kept of a job at most; above, every second one goes
_BATCH: Final = 500  # parameters of one statement


class Unit:
    """A job under its lock. Made by `Store.unit`; usable only inside its `with`."""

    def __init__(self, connection: Connection, job_id: str) -> None:
        self._connection = connection
        row = connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update()).one_or_none()
        if row is None:
            raise JobNotFoundError(job_id)
        self._last_position: int = row.last_position
        self.job = job_of(row, generation_row_of(connection, job_id, row.generation))

    def save(self, change: Transition) -> Job:
        """Write the job as it is now, and its events. Raises StaleVersionError where it was read before another write."""
        if change.job is self.job and not change.events:
            return self.job
        job = change.job
        self._append("service", change.events)
        values = job_row(job) | {"version": job.version + 1, "last_position": self._last_position}
        written = self._connection.execute(
            update(jobs).where(jobs.c.id == job.id, jobs.c.version == job.version).values(values)
        )
        if written.rowcount != 1:
            raise StaleVersionError(f"job {job.id} changed since version {job.version}")
        if job.current is not None:
            self._save_generation(job.id, job.current)
        self.job = job.evolve(version=job.version + 1)
        return self.job

    def _save_generation(self, job_id: str, generation: Generation) -> None:
        row = generation_row(job_id, generation)
        key = (generations.c.job_id == job_id, generations.c.number == generation.number)
        if self._connection.execute(update(generations).where(*key).values(row)).rowcount == 0:
            self._connection.execute(insert(generations).values(row))

    def add_driver_events(self, generation: int, told: Sequence[Event]) -> int:
        """Append a driver's events; return the highest stored sequence number.

        Left out is what is stored already, and what claims another generation: its token speaks for this one alone.
        """
        key = (generations.c.job_id == self.job.id, generations.c.number == generation)
        known = self._connection.execute(select(generations.c.acknowledged).where(*key)).scalar_one()
        own = {e.sequence: e for e in told if e.generation == generation and e.sequence > known}
        fresh = [own[sequence] for sequence in sorted(own)]
        if not fresh:
            return int(known)
        self._append("driver", fresh)
        highest = fresh[-1].sequence
        self._connection.execute(update(generations).where(*key).values(acknowledged=highest))
        self._connection.execute(
            update(jobs).where(jobs.c.id == self.job.id).values(last_position=self._last_position)
        )
        if self.job.current is not None and self.job.current.number == generation:
            self.job = self.job.with_generation(acknowledged=highest)
        return highest

    def _append(self, source: Source, told: Iterable[Event]) -> None:
        for event in told:
            self._last_position += 1
            self._connection.execute(
                insert(events).values(event_row(self.job.id, self._last_position, source, event))
            )

    def samples(self) -> Mapping[int, tuple[int, Sample]]:
        """Return the newest sample of each rank that ever spoke, with its generation."""
        rows = self._connection.execute(select(samples).where(samples.c.job_id == self.job.id))
        return {row.rank: (row.generation, Sample.from_json(row.body)) for row in rows}

    def put_samples(self, generation: int, newest: Sequence[Sample]) -> None:
        """Replace the samples of these ranks."""
        ranks = [sample.rank for sample in newest]
        for start in range(0, len(ranks), _BATCH):
            self._connection.execute(
                delete(samples).where(
                    samples.c.job_id == self.job.id, samples.c.rank.in_(ranks[start : start + _BATCH])
                )
            )
        rows = [
            {"job_id": self.job.id, "rank": s.rank, "generation": generation, "body": s.to_json()}
            for s in newest
        ]
        if rows:
            self._connection.execute(insert(samples), rows)

    def put_losses(self, points: Sequence[LossPoint], *, rewind_to: int | None) -> None:
        """Append to the loss curve; first drop what lies after `rewind_to`: steps that are trained again."""
        own = losses.c.job_id == self.job.id
        if rewind_to is not None:
            self._connection.execute(delete(losses).where(own, losses.c.step > rewind_to))
        for point in points:
            self._connection.execute(delete(losses).where(own, losses.c.step == point.step))
            self._connection.execute(
                insert(losses).values(job_id=self.job.id, step=point.step, loss=point.loss)
            )
        count = self._connection.execute(select(func.count()).select_from(losses).where(own)).scalar_one()
        if count > LOSS_POINTS:
            self._thin_losses()

    def _thin_losses(self) -> None:
        own = losses.c.job_id == self.job.id
        steps = list(
            self._connection.execute(select(losses.c.step).where(own).order_by(losses.c.step)).scalars()
        )
        gone = steps[1:-1:2]  # first and last stay
        for start in range(0, len(gone), _BATCH):
            self._connection.execute(
                delete(losses).where(own, losses.c.step.in_(gone[start : start + _BATCH]))
            )

    def add_report_token(self, generation: int, digest: str) -> None:
        """Let the token with this digest report for the generation."""
        self._connection.execute(
            insert(report_tokens).values(job_id=self.job.id, generation=generation, digest=digest)
        )


def generation_row_of(connection: Connection, job_id: str, number: int) -> Row[Any] | None:
    """Return the row of a job's generation; None for number 0."""
    key = (generations.c.job_id == job_id, generations.c.number == number)
    return connection.execute(select(generations).where(*key)).one_or_none()
