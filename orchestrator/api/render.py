"""From the control plane's values to what the API answers. Pure. Every time leaves in UTC, with its offset."""

from datetime import UTC, datetime

from orchestrator.api.views import (
    CheckpointView,
    ClusterView,
    EventPage,
    EventView,
    JobPage,
    JobView,
    LogChunk,
    LogView,
    LossPoint,
    NodeView,
    ProblemView,
    SamplesView,
    ValidView,
)
from orchestrator.controller import ClusterSight
from orchestrator.errors import Problem
from orchestrator.job import Job, TimelineEvent
from orchestrator.job_queries import (
    JobList,
    LogFile,
    LogPart,
    Measurements,
    Timeline,
    Validated,
)
from workers.contract.stored import StoredCheckpoint


def utc(moment: datetime) -> datetime:
    """Return the same moment in UTC; one without an offset is read as UTC, never as local time."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def utc_or_none(moment: datetime | None) -> datetime | None:
    """`utc`, where there is a moment."""
    return None if moment is None else utc(moment)


def job_view(job: Job, *, with_spec: bool = True) -> JobView:
    """Render a job; lists leave its spec out."""
    return JobView(
        id=job.id,
        name=job.name,
        state=job.state.value,
        reason=job.reason,
        desired=job.desired,
        generation=job.generation,
        world_size=job.world_size,
        step=job.step,
        target_steps=job.spec.train.steps,
        counters=job.counters,
        created_at=utc(job.created_at),
        updated_at=utc(job.updated_at),
        started_at=utc_or_none(job.started_at),
        finished_at=utc_or_none(job.ended_at),
        verdict=job.verdict,
        result=job.result,
        run_dir=job.run_dir,
        storage=job.storage,
        queue=job.spec.queue.name,
        priority=job.spec.queue.priority,
        version=job.version,
        spec=job.spec.model_dump(mode="json") if with_spec else {},
    )


def job_page(page: JobList) -> JobPage:
    """Render a page; its cursor is the number of the oldest job on it."""
    cursor = None if page.next_before is None else str(page.next_before)
    return JobPage(jobs=[job_view(job, with_spec=False) for job in page.jobs], next_cursor=cursor)


def event_page(timeline: Timeline) -> EventPage:
    """Render a piece of a timeline."""
    return EventPage(
        events=[event_view(one) for one in timeline.events],
        next_after=timeline.next_after,
        is_complete=timeline.is_complete,
    )


def event_view(stored: TimelineEvent) -> EventView:
    """Render one event with its place in the timeline."""
    event = stored.event
    return EventView.model_validate(dict(event) | {"at": utc(event.at), "cursor": stored.position})


def samples_view(measurements: Measurements) -> SamplesView:
    """Render the newest samples and the loss curve."""
    return SamplesView(
        latest=[sample.model_copy(update={"at": utc(sample.at)}) for sample in measurements.latest],
        losses=[LossPoint(step=point.step, loss=point.loss) for point in measurements.losses],
    )


def log_view(file: LogFile) -> LogView:
    """Render a log file's name and size."""
    return LogView(
        generation=file.name.generation,
        attempt=file.name.attempt,
        round=file.name.round,
        rank=file.name.rank,
        size_bytes=file.size_bytes,
        modified_at=utc(file.modified_at),
    )


def log_chunk(part: LogPart) -> LogChunk:
    """Render a part of a log."""
    return LogChunk(
        text=part.text, offset=part.offset, next_offset=part.next_offset, size_bytes=part.size_bytes
    )


def checkpoint_view(stored: StoredCheckpoint) -> CheckpointView:
    """Render a published checkpoint."""
    return CheckpointView.model_validate(dict(stored) | {"published_at": utc_or_none(stored.published_at)})


def valid_view(validated: Validated) -> ValidView:
    """Render a spec that would be accepted."""
    return ValidView(name=validated.name, spec=validated.spec, digest=validated.digest)


def problem_view(problem: Problem) -> ProblemView:
    """Render one mistake in a job file."""
    return ProblemView(
        text=str(problem),
        source=problem.source,
        path=problem.path,
        line=problem.line,
        column=problem.column,
        value=problem.value,
        rule=problem.rule,
        remedy=problem.remedy,
    )


def cluster_view(sight: ClusterSight) -> ClusterView:
    """Render what the controller last saw of Ray."""
    return ClusterView(
        is_reachable=sight.is_reachable,
        error="" if sight.is_reachable else sight.error,
        seen_at=utc_or_none(sight.seen_at),
        nodes=[
            NodeView(
                id=node.node_id, address=node.address, cpus=node.cpus, gpus=node.gpus, is_head=node.is_head
            )
            for node in sight.capacity.nodes
        ],
        held_cpus=sight.held_cpus,
        held_gpus=sight.held_gpus,
    )
