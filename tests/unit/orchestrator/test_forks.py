"""Forks through the service: which checkpoint, what may change, and who keeps it from being deleted."""

from pathlib import Path

import pytest

from orchestrator.errors import (
    CheckpointNotFoundError,
    IdempotencyConflictError,
    JobNotFoundError,
    SpecError,
)
from orchestrator.job import JobState
from workers.contract.manifest import CheckpointId, Manifest, ResumePoint
from workers.contract.rundir import HOLDS, checkpoints_dir

BASE = "name: fork\nmodel: {kind: llama}\ndata: {kind: text, path: python-stdlib}\n"


def publish(run_dir: str, *steps: int) -> None:
    for step in steps:
        one = CheckpointId(step=step, generation=1, attempt=0, round=0, nonce="0" * 8)
        point = ResumePoint(step=step, next_index=0, seed=0, tokens_seen=0, data_digest="", config_digest="")
        manifest = Manifest(checkpoint=one, parent=None, world_size=1, resume=point, tensors={}, files={})
        path = checkpoints_dir(run_dir) / str(one)
        path.mkdir(parents=True)
        (path / "manifest.json").write_text(manifest.to_json())


@pytest.fixture
def source(yard):
    """A job with checkpoints of steps 50 and 100."""
    job = yard.job(yard.submit("name=source"))
    publish(job.run_dir, 50, 100)
    yard.service.cancel(job.id)
    return job


def holders(source) -> list[str]:
    return sorted(p.relative_to(p.parents[1]).as_posix() for p in (Path(source.run_dir) / HOLDS).glob("*/*"))


@pytest.mark.parametrize(("reference", "step"), [("source", 100), ("source@50", 50)])
def test_a_fork_is_launched_with_the_checkpoint_that_is_meant(
    yard, source, reference: str, step: int
) -> None:
    job = yard.service.submit(BASE, resume_from=reference).job
    name = f"step-{step:08d}.g1.a0.r0.00000000"
    assert holders(source) == [f"{name}/job-{job.id}"]
    yard.controller.tick()
    (request, _) = yard.ray.submitted[f"{job.id}-1"]
    assert (request.origin.job_id, request.origin.run, request.origin.checkpoint) == (
        source.id,
        source.run_dir,
        name,
    )
    born = yard.service.events(job.id).events[0].event
    assert f"a fork of {source.id} at {name}" in born.message


def test_an_ordinary_job_has_no_origin(yard) -> None:
    job_id = yard.submit()
    yard.controller.tick()
    assert yard.ray.submitted[f"{job_id}-1"][0].origin is None


def test_what_a_fork_may_not_change_is_refused_with_its_line_and_both_values(yard, source) -> None:
    text = (
        BASE.replace("{kind: llama}", "{kind: llama, size: small}")
        + "train:\n  optimizer: {name: sgd, lr: 1}\n"
    )
    with pytest.raises(SpecError) as refused:
        yard.service.submit(text, source="fork.yaml", resume_from="source")
    assert [str(problem) for problem in refused.value.problems] == [
        "fork.yaml:2: model.size: small was tiny in job source, and a fork keeps it",
        "fork.yaml:5: train.optimizer.name: sgd was adamw in job source, and a fork keeps it",
    ]
    assert holders(source) == []


def test_a_fork_that_would_train_nothing_is_refused(yard, source) -> None:
    with pytest.raises(SpecError, match=r"train\.steps: 100 is not above step 100"):
        yard.service.submit(BASE, overrides=["train.steps=100"], resume_from="source@100")


@pytest.mark.parametrize("reference", ["source@70", "source@step-00000070.g1.a0.r0.00000000"])
def test_a_step_that_is_not_there_is_refused_with_those_that_are(yard, source, reference: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="there are those of steps 50, 100"):
        yard.service.submit(BASE, resume_from=reference)


def test_a_job_that_is_not_there_is_refused(yard) -> None:
    with pytest.raises(JobNotFoundError):
        yard.service.submit(BASE, resume_from="nobody@3")


def test_the_checkpoint_is_let_go_when_the_fork_ends_without_one_of_its_own(yard, source) -> None:
    waiting = yard.service.submit(BASE, resume_from="source").job
    yard.service.cancel(waiting.id)
    assert holders(source) == []
    started = yard.service.submit(BASE, resume_from="source").job
    yard.controller.tick()
    yard.service.cancel(started.id)
    assert len(holders(source)) == 1, "its driver may be loading it"
    yard.report(started.id, "stopped")
    yard.ray.end(f"{started.id}-1")
    yard.controller.tick()
    assert yard.job(started.id).state is JobState.CANCELLED
    assert holders(source) == []


def test_one_key_makes_one_fork_also_when_its_name_means_the_fork_by_now(yard, source) -> None:
    text = BASE.replace("fork", "source")
    first = yard.service.submit(text, idempotency_key="k", resume_from="source@50")
    again = yard.service.submit(text, idempotency_key="k", resume_from="source@50")
    assert (first.created, again.created, again.job.id) == (True, False, first.job.id)
    assert len(holders(source)) == 1
    with pytest.raises(IdempotencyConflictError):
        yard.service.submit(text, idempotency_key="k", resume_from="source@100")
