"""The database, for real: SQLite on disk."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from orchestrator.draft import Transition
from orchestrator.errors import IdempotencyConflictError, JobNotFoundError, StaleVersionError, StoreError
from orchestrator.gang import Gang
from orchestrator.job import GenerationState, JobState
from orchestrator.job_inputs import CancelRequested, Granted, Submitted
from orchestrator.job_queries import JobQuery, LossPoint
from orchestrator.store import Store
from orchestrator.store.tables import jobs, metadata
from orchestrator.store.unit import LOSS_POINTS
from orchestrator.transition import transition
from workers.contract.events import EventKind

NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)
GANG = Gang(workers=2, cpus_per_worker=1, gpus_per_worker=0)


def add(store: Store, make, job_id: str = "j1", *overrides: str, **changes: object):
    job = make.job(*overrides, job_id=job_id, **changes)
    return store.create(job, [], key=None, digest="d")[0]


def grant(store: Store, job_id: str = "j1") -> None:
    with store.unit(job_id) as unit:
        unit.save(transition(unit.job, Granted(gang=GANG), now=NOW))


def test_a_job_comes_back_as_it_was_written_also_by_another_process(
    store: Store, database: str, make
) -> None:  # B116
    written = add(store, make, "j1", "train.steps=7", "scaling.num_workers=[1, 2]")
    grant(store)
    with store.unit("j1") as unit:
        unit.save(Transition(job=unit.job.evolve(verdict=make.verdict(), result=make.result())))
    other = Store.open(database)
    found = other.job("j1")
    assert found == store.job("j1")
    assert (found.spec, found.verdict, found.result) == (written.spec, make.verdict(), make.result())
    assert found.current is not None
    assert (found.current.gang, found.current.state) == (GANG, GenerationState.GRANTED)
    other.close()


def test_times_keep_their_moment_whatever_zone_they_came_in(store: Store, make) -> None:  # B129
    halifax = timezone(timedelta(hours=-3))
    add(store, make, created_at=datetime(2026, 3, 8, 1, 30, tzinfo=halifax))
    assert store.job("j1").created_at == datetime(2026, 3, 8, 4, 30, tzinfo=UTC)
    assert store.job("j1").created_at.utcoffset() == timedelta(0)


def test_a_writer_that_read_before_another_wrote_is_refused_and_writes_nothing(store: Store, make) -> None:
    stale = add(store, make)
    grant(store)
    change = transition(stale, CancelRequested(by="ada"), now=NOW)
    with pytest.raises(StaleVersionError), store.unit("j1") as unit:
        unit.save(change)
    assert store.job("j1").desired == "run"
    assert "cancelled" not in str(store.events("j1", after=0, limit=100))


def test_a_unit_that_fails_leaves_nothing_behind(store: Store, make) -> None:
    add(store, make)

    def crash_after_a_write() -> None:
        with store.unit("j1") as unit:
            unit.save(transition(unit.job, Granted(gang=GANG), now=NOW))
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        crash_after_a_write()
    assert store.job("j1").generation == 0
    assert store.events("j1", after=0, limit=10) == ()


def test_writers_of_one_job_take_turns(store: Store, make) -> None:
    add(store, make)

    def count(_: int) -> None:
        with store.unit("j1") as unit:
            unit.save(Transition(job=unit.job.evolve(tokens=unit.job.tokens + 1)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(40)))
    assert (store.job("j1").tokens, store.job("j1").version) == (40, 40)


def test_a_job_that_is_not_there_is_named(store: Store) -> None:
    for ask in (store.job, store.find):
        with pytest.raises(JobNotFoundError, match="nope"):
            ask("nope")
    with pytest.raises(JobNotFoundError), store.unit("nope"):
        pass


def test_a_name_means_the_newest_job_and_an_id_comes_first(store: Store, make) -> None:
    for job_id in ("j1", "j2"):
        add(store, make, job_id, "name=same")
    add(store, make, "j3", "name=j1")
    assert store.find("same").id == "j2"
    assert store.find("j1").id == "j1"


def test_events_are_stored_once_however_often_they_are_told(store: Store, make) -> None:
    add(store, make)
    grant(store)
    told = [make.event(n) for n in range(4)]
    for batch, highest in ((told[:2], 1), (told[:2], 1), (told[1:], 3), ([], 3)):
        with store.unit("j1") as unit:
            assert unit.add_driver_events(1, batch) == highest
    driver = [one for one in store.events("j1", after=0, limit=100) if one.source == "driver"]
    assert [one.event.sequence for one in driver] == [0, 1, 2, 3]


def test_events_of_another_generation_than_the_tokens_are_not_taken(store: Store, make) -> None:
    add(store, make)
    grant(store)
    with store.unit("j1") as unit:
        assert unit.add_driver_events(1, [make.event(0), make.event(0), make.event(1, generation=2)]) == 0
    driver = [one.event for one in store.events("j1", after=0, limit=100) if one.source == "driver"]
    assert [(event.generation, event.sequence) for event in driver] == [(1, 0)]


def test_positions_count_up_without_a_gap_whoever_writes(store: Store, make) -> None:
    add(store, make)
    grant(store)
    with store.unit("j1") as unit:
        unit.add_driver_events(1, [make.event(0), make.event(1)])
        unit.save(transition(unit.job, Submitted(generation=1), now=NOW))
    with store.unit("j1") as unit:
        unit.save(transition(unit.job, CancelRequested(by="ada"), now=NOW))
    found = store.events("j1", after=0, limit=100)
    assert [one.position for one in found] == list(range(1, len(found) + 1))
    assert store.events("j1", after=2, limit=1) == found[2:3]


def test_twenty_submits_with_one_key_make_one_job(store: Store, make) -> None:  # B136
    barrier = threading.Barrier(20)

    def submit(number: int):
        job = make.job(job_id=f"j{number}")
        barrier.wait()
        return store.create(job, [], key="k", digest="d")

    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(submit, range(20)))
    assert sum(created for _, created in made) == 1
    assert len({job.id for job, _ in made}) == 1
    assert len(store.list_jobs(JobQuery()).jobs) == 1


def test_a_key_with_another_body_is_a_conflict_that_names_its_job(store: Store, make) -> None:  # B136
    store.create(make.job(), [], key="k", digest="d")
    with pytest.raises(IdempotencyConflictError, match="j1"):
        store.create(make.job(job_id="j2"), [], key="k", digest="other")
    assert len(store.list_jobs(JobQuery()).jobs) == 1


def test_running_jobs_are_found_in_a_long_history_and_pages_neither_repeat_nor_miss(
    store: Store, make
) -> None:  # B141
    for number in range(60):
        state = JobState.RUNNING if number % 20 == 0 else JobState.SUCCEEDED
        add(store, make, f"j{number}", state=state)
    running = store.list_jobs(JobQuery(states=(JobState.RUNNING,), limit=2))
    assert [job.id for job in running.jobs] == ["j40", "j20"]
    assert running.next_before is not None
    seen: list[str] = []
    before = None
    while True:
        page = store.list_jobs(JobQuery(limit=7, before=before))
        seen += [job.id for job in page.jobs]
        add(store, make, f"new{len(seen)}")
        if (before := page.next_before) is None:
            break
    assert seen == [f"j{number}" for number in reversed(range(60))]


def test_open_jobs_are_those_that_live_or_still_hold_something(store: Store, make) -> None:
    add(store, make, "queued")
    add(store, make, "ended", state=JobState.SUCCEEDED)
    add(store, make, "holds")
    grant(store, "holds")
    with store.unit("holds") as unit:
        unit.save(Transition(job=unit.job.evolve(state=JobState.FAILED)))
    assert [job.id for job in store.open_jobs()] == ["queued", "holds"]


def test_the_loss_curve_is_thinned_and_keeps_its_ends(store: Store, make) -> None:
    add(store, make)
    with store.unit("j1") as unit:
        unit.put_losses([LossPoint(step=n, loss=float(n)) for n in range(LOSS_POINTS + 1)], rewind_to=None)
    curve = store.losses("j1")
    assert LOSS_POINTS / 2 <= len(curve) <= LOSS_POINTS
    assert (curve[0].step, curve[-1].step) == (0, LOSS_POINTS)
    with store.unit("j1") as unit:
        unit.put_losses([LossPoint(step=11, loss=float("nan"))], rewind_to=10)
    assert store.losses("j1")[-1].step == 11


def test_a_loss_comes_back_bit_by_bit_also_when_it_is_not_a_number(store: Store, make) -> None:
    add(store, make)
    values = [0.1 + 0.2, 1e-300, float("inf"), float("nan")]
    with store.unit("j1") as unit:
        unit.put_losses([LossPoint(step=n, loss=v) for n, v in enumerate(values)], rewind_to=None)
        unit.put_samples(1, [make.sample(1, loss=float("nan"))])
    assert repr([p.loss for p in store.losses("j1")]) == repr(values)
    ((_, found),) = store.samples("j1")
    assert repr(found.loss) == "nan"


def test_events_are_counted_by_failure_class(store: Store, make) -> None:
    add(store, make)
    grant(store)
    told = [
        make.event(n, EventKind.RESTART, data={"reason": r}) for n, r in enumerate(["hang", "hang", "odd"])
    ]
    with store.unit("j1") as unit:
        unit.add_driver_events(1, told)
    assert store.count_events("j1", EventKind.RESTART) == {"hang": 2, "internal": 1}
    newest = store.newest_event("j1", EventKind.RESTART)
    assert newest is not None
    assert newest.sequence == 2


def test_a_token_reports_for_its_own_generation_only(store: Store, make) -> None:
    add(store, make)
    with store.unit("j1") as unit:
        unit.add_report_token(1, "digest")
    assert store.may_report("j1", 1, "digest")
    assert not store.may_report("j1", 2, "digest")
    assert not store.may_report("j2", 1, "digest")
    assert not store.may_report("j1", 1, "other")


def test_a_database_of_another_version_is_refused_by_name(store: Store, database: str) -> None:
    store.close()
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE meta SET value = '99'")
    connection.close()
    with pytest.raises(StoreError, match="schema 99"):
        Store.open(database)


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////nowhere/at/all.db", "unknown://x"])
def test_a_database_that_cannot_be_had_is_a_store_error(url: str) -> None:
    with pytest.raises(StoreError):
        Store.open(url)


def test_sqlite_writes_ahead_and_syncs_every_commit(store: Store, database: str, make) -> None:
    add(store, make)
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_the_tables_and_the_lock_can_be_said_to_postgresql() -> None:
    dialect = postgresql.dialect()
    said = [str(CreateTable(table).compile(dialect=dialect)) for table in metadata.sorted_tables]
    said += [
        str(CreateIndex(i).compile(dialect=dialect))
        for table in metadata.sorted_tables
        for i in table.indexes
    ]
    assert any("tokens BIGINT" in one for one in said)
    assert str(select(jobs.c.id).with_for_update().compile(dialect=dialect)).endswith("FOR UPDATE")
