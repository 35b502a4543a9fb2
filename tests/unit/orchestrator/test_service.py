"""Use cases, on a real store: submit, cancel, report."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import IdempotencyConflictError, JobNotFoundError, NotAuthorizedError, SpecError
from orchestrator.job import JobState
from orchestrator.job_queries import JobQuery
from orchestrator.service import Roots, Service
from workers.contract.events import EventKind
from workers.contract.report import Report

BASE = "model: {kind: llama}\ndata: {kind: text, path: python-stdlib}\n"


def test_a_submitted_job_is_queued_and_its_timeline_begins(yard) -> None:
    job = yard.job(yard.submit("name=a"))
    assert (job.state, job.name, job.awaits_grant) == (JobState.QUEUED, "a", True)
    assert job.run_dir == str(yard.root / "runs" / job.id)
    assert yard.told(job.id) == ["None -> queued"]


def test_the_same_key_and_meaning_give_the_same_job_also_after_it_ended(yard) -> None:  # B136
    first = yard.service.submit(BASE, idempotency_key="k")
    again = yard.service.submit(f"# the same\n{BASE}", idempotency_key="k")
    assert (first.created, again.created, again.job.id) == (True, False, first.job.id)
    yard.service.cancel(first.job.id)
    ended = yard.service.submit(BASE, idempotency_key="k").job
    assert (ended.id, ended.state) == (first.job.id, JobState.CANCELLED)
    with pytest.raises(IdempotencyConflictError):
        yard.service.submit(BASE, overrides=["train.steps=3"], idempotency_key="k")


def test_a_refused_file_leaves_no_job(yard) -> None:
    with pytest.raises(SpecError):
        yard.service.submit("model: {kind: lama}")
    assert yard.service.list_jobs(JobQuery()).jobs == ()


def test_validate_fills_in_every_default_and_submits_nothing(yard) -> None:
    valid = yard.service.validate(BASE)
    assert valid.spec["train"]["steps"] == 200
    assert yard.service.list_jobs(JobQuery()).jobs == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "checkpoint: {storage_path: ../../etc}",
            "checkpoint.storage_path: ../../etc lies outside the roots",
        ),
        ("checkpoint: {storage_path: /etc}", "checkpoint.storage_path: /etc lies outside the roots"),
        ("checkpoint: {storage_path: link}", "checkpoint.storage_path: link lies outside the roots"),
        ("checkpoint: {storage_path: 's3://bucket/x'}", "is at no URL that jobs may use"),
        ("checkpoint: {storage_path: 'file:///etc'}", "is no storage that this version knows"),
        ("checkpoint: {storage_path: 'simplecache::http://x/y'}", "is no storage that this version knows"),
        ('checkpoint: {storage_path: "a\\0b"}', "this text holds a NUL"),
        ("checkpoint: {storage_path: ''}", "is not a path"),
    ],
)
def test_no_path_leaves_the_roots(yard, text: str, message: str) -> None:  # B144
    (yard.root / "link").symlink_to("/etc")
    with pytest.raises(SpecError) as caught:
        yard.service.submit(BASE + text)
    assert message in str(caught.value)
    assert caught.value.problems[0].line == 3


def test_checkpoints_lie_at_a_url_below_an_allowed_one_and_logs_below_the_storage_root(yard) -> None:
    roots = Roots.of(yard.root, ["/data", "s3://team/runs"])
    assert (roots.allowed, roots.urls) == ((Path("/data"),), ("s3://team/runs",))
    service = Service(yard.store, roots=roots, now=yard.clock.now)
    job = service.submit(BASE + "checkpoint: {storage_path: 's3://team/runs/mine'}\n").job
    assert job.storage == f"s3://team/runs/mine/{job.id}"
    assert job.run_dir == str(yard.root / "runs" / job.id)
    for elsewhere in ("s3://team/runs-2", "s3://other/runs", "s3://team/runs/../x"):
        with pytest.raises(SpecError):
            service.submit(BASE + f"checkpoint: {{storage_path: '{elsewhere}'}}\n")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "s3://bucket/x"])
def test_data_is_read_under_the_roots_only(yard, path: str) -> None:  # B144
    with pytest.raises(SpecError) as caught:
        yard.service.submit(f"model: {{kind: llama}}\ndata: {{kind: text, path: '{path}'}}\n")
    assert str(caught.value).startswith("job.yaml:2: data.path: ")


def test_encoded_dots_are_only_a_name(yard) -> None:  # B144
    job = yard.service.submit(BASE, overrides=["checkpoint.storage_path='%2e%2e%2fx'"]).job
    assert job.run_dir.startswith(str(yard.root / "%2e%2e%2fx"))


def test_data_under_an_allowed_root_is_found_by_its_absolute_path(yard, tmp_path) -> None:
    corpus = tmp_path / "corpus"
    service = Service(yard.store, roots=Roots(storage=yard.root, allowed=(corpus,)), now=yard.clock.now)
    job = service.submit(f"model: {{kind: llama}}\ndata: {{kind: text, path: {corpus}}}\n").job
    assert job.spec.data.path == str(corpus)  # type: ignore[union-attr]
    relative = service.submit("model: {kind: llama}\ndata: {kind: text, path: texts}\n").job
    assert relative.spec.data.path == str(yard.root / "texts")  # type: ignore[union-attr]


def test_a_working_directory_that_would_shadow_ours_is_refused_at_submit(yard, tmp_path) -> None:
    (tmp_path / "code" / "workers").mkdir(parents=True)
    with pytest.raises(SpecError, match="workers") as caught:
        yard.service.submit(f"{BASE}runtime:\n  working_dir: {tmp_path / 'code'}\n")
    assert caught.value.problems[0].line == 4


def test_cancel_of_a_queued_job_is_done_at_once_and_it_never_runs(yard) -> None:  # B103
    job_id = yard.submit()
    assert yard.service.cancel(job_id, by="ada").state is JobState.CANCELLED
    yard.ticks(3)
    assert yard.ray.submitted == {}
    assert yard.job(job_id).reason == "cancelled by ada"


def test_cancel_of_an_ended_job_is_its_true_state(yard) -> None:  # B139
    job_id = yard.running()
    yard.finish(job_id)
    before = yard.job(job_id)
    assert yard.service.cancel(job_id) == before
    assert before.state is JobState.SUCCEEDED


def test_an_unknown_job_is_said_to_be_unknown(yard) -> None:
    for use in (yard.service.get, yard.service.cancel, yard.service.events, yard.service.logs):
        with pytest.raises(JobNotFoundError):
            use("nope")


def test_a_report_is_answered_with_what_is_stored_and_what_to_do(yard, make) -> None:
    job_id = yard.running()
    told = [make.event(0, EventKind.DRIVER_STARTED), make.event(1)]
    first = yard.report(job_id, "running", step=5, events=told, samples=[make.sample(5)])
    assert (first.action, first.acknowledged, first.generation) == ("run", 1, 1)
    again = yard.report(job_id, "running", step=5, events=told, samples=[make.sample(5)])
    assert again == first
    assert yard.job(job_id).tokens == 100
    yard.service.cancel(job_id, by="ada")
    stop = yard.report(job_id, "running", step=6)
    assert (stop.action, stop.reason) == ("stop", "cancelled by ada")


def test_reports_that_race_are_counted_once(yard, make) -> None:
    job_id = yard.running()
    told = [make.event(n) for n in range(20)]
    samples = [make.sample(n) for n in range(1, 21)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: yard.report(job_id, "running", step=20, events=told, samples=samples), range(16)
            )
        )
    assert {answer.acknowledged for answer in answers} == {19}
    driver = [one for one in yard.service.events(job_id).events if one.source == "driver"]
    assert len(driver) == 20
    assert yard.job(job_id).tokens == 2000


def test_a_token_of_another_job_or_none_reports_nothing(yard) -> None:
    mine, other = yard.running(), yard.running()
    report = Report(
        job_id=mine, generation=1, phase="finished", step=200, world_size=1, counters=yard.job(mine).counters
    )
    for token in ("", "x", yard.ray.submitted[f"{other}-1"][1]):
        with pytest.raises(NotAuthorizedError):
            yard.service.report(mine, report, token=token)
    stray = report.model_copy(update={"job_id": other})
    with pytest.raises(NotAuthorizedError):
        yard.service.report(mine, stray, token=yard.ray.submitted[f"{mine}-1"][1])
    assert yard.job(mine).state is JobState.RUNNING


def test_a_finished_job_has_its_result_and_an_end(yard, make) -> None:
    job_id = yard.running()
    yard.finish(job_id)
    job = yard.job(job_id)
    assert (job.state, job.result, job.ended_at) == (JobState.SUCCEEDED, make.result(), yard.clock.now())
    assert yard.told(job_id)[-1] == "running -> succeeded"


def test_a_timeline_is_complete_once_the_job_has_ended_and_holds_nothing(yard) -> None:
    job_id = yard.running()
    yard.finish(job_id)
    assert not yard.service.events(job_id).is_complete
    yard.ray.end(f"{job_id}-1")
    yard.controller.tick()
    timeline = yard.service.events(job_id)
    assert timeline.is_complete
    assert yard.service.events(job_id, after=timeline.next_after).events == ()
    assert not yard.service.events(job_id, limit=1).is_complete


def test_only_a_running_job_exports_ranks_and_an_ended_one_nothing(yard, make) -> None:  # B104, B107
    job_id = yard.running("name=a")
    yard.report(job_id, "running", step=5, samples=[make.sample(5), make.sample(5, rank=1)])
    (live,) = yard.service.live_jobs()
    assert (live.state, live.step, live.tokens, len(live.samples)) == ("running", 5, 100, 2)
    yard.report(job_id, "recovering", step=5)
    (live,) = yard.service.live_jobs()
    assert (live.state, live.samples, live.tokens, live.world_size) == ("recovering", (), 100, 0)
    yard.report(job_id, "running", step=4, samples=[make.sample(4, round_=1)])
    (live,) = yard.service.live_jobs()
    assert [sample.rank for sample in live.samples] == [0]
    yard.finish(job_id)
    assert yard.service.live_jobs() == ()
    counts = yard.service.counts()
    assert [state for state, count in counts.items() if count] == [JobState.SUCCEEDED]


def test_live_numbers_come_from_the_timeline(yard, make) -> None:
    job_id = yard.running()
    published = {"checkpoint": "c", "bytes": 7, "stall_seconds": 0.5, "write_seconds": 2.0}
    told = [
        make.event(0, EventKind.CHECKPOINT_PUBLISHED, step=20, data=published),
        make.event(1, EventKind.CHECKPOINT_FAILED),
        make.event(2, EventKind.RESTART, data={"reason": "rank_lost"}),
        make.event(3, EventKind.FIRST_STEP, data={"seconds_since_fault": 1.5}),
    ]
    yard.report(job_id, "running", step=21, events=told)
    yard.restart()
    (live,) = yard.service.live_jobs()
    assert live.checkpoint is not None
    assert (live.checkpoint.step, live.checkpoint.total_bytes) == (20, 7)
    assert (live.checkpoint.write_seconds, live.checkpoint.stall_seconds) == (2.0, 0.5)
    assert (live.checkpoint_failures, live.restarts, live.recovery_seconds) == (1, {"rank_lost": 1}, 1.5)


def test_the_loss_curve_follows_the_surviving_lineage(yard, make) -> None:
    job_id = yard.running()
    yard.report(job_id, "running", step=5, samples=[make.sample(n, loss=float(n)) for n in range(1, 6)])
    yard.report(job_id, "running", step=3, samples=[make.sample(3, round_=1, loss=9.0)])
    found = yard.service.measurements(job_id)
    assert [(p.step, p.loss) for p in found.losses] == [(1, 1.0), (2, 2.0), (3, 9.0)]
    assert [(s.step, s.round) for s in found.latest] == [(3, 1)]
