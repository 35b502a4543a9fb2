"""`/metrics` from live job state: a snapshot of the store, rendered at each scrape.

Nothing is counted in this process but the controller's ticks: a job's counters come from the store, so they do not
fall when the service restarts, and a job's series end with the job. Names come from `workers.contract.metric_names`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from workers.contract import metric_names as names
from workers.contract.events import Sample

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
RANK_SERIES_LIMIT: Final = 64  # above it a job exports min, mean and max over its ranks
Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The newest published checkpoint of a job."""

    step: int
    published_at: datetime
    total_bytes: int
    write_seconds: float | None = None
    stall_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """What a job that has not ended exports. `samples` are those of the ranks that live now, newest of each."""

    job_id: str
    name: str
    engine: str
    zero_stage: int
    state: str
    step: int
    target_steps: int
    world_size: int  # 0: no rank runs
    samples: Sequence[Sample] = ()
    tokens: int = 0  # replayed steps included
    restarts: Mapping[str, int] = field(default_factory=dict)  # failure class -> count
    checkpoint: CheckpointState | None = None
    checkpoint_failures: int = 0
    recovery_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent look at the service."""

    states: Sequence[str]  # every state there is, also those without a job
    jobs_by_state: Mapping[str, int]
    live: Sequence[LiveJob]
    ticks: Mapping[str, int]  # outcome -> ticks of this process' controller
    is_cluster_reachable: bool


def render(read: Callable[[], Snapshot], *, now: Callable[[], datetime]) -> bytes:
    """Return the exposition text. Reads the store once; what that raises is the caller's."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(read(), now()))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    """The shape that prometheus_client asks for."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._snapshot = snapshot
        self._now = now

    def describe(self) -> list[Family]:
        """Nothing beforehand: without this, registering would collect a first time."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield every family that has a series, in the order of the names."""
        series = Series()
        _add_service(series, self._snapshot)
        for job in self._snapshot.live:
            _add_job(series, job, self._snapshot.states)
            _add_ranks(series, job)
            _add_checkpoint(series, job, self._now)
        return series.families()


class Series:
    """Label values and numbers by family; a family without any is not exported."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)

    def add(self, metric: names.Metric, value: float | None, *labels: str) -> None:
        """Add one series; None means that the number is not known, and adds nothing."""
        assert len(labels) == len(metric.labels), (metric.name, labels)
        if value is not None:
            self._values[metric.name].append((labels, value))

    def families(self) -> Iterator[Family]:
        """Yield the families in the order in which the contract names them."""
        for metric in names.ALL:
            if metric.name in self._values:
                family = _empty_family(metric)
                for labels, value in self._values[metric.name]:
                    family.add_metric(labels, value)
                yield family


def _empty_family(metric: names.Metric) -> Family:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add_service(series: Series, snapshot: Snapshot) -> None:
    for state in snapshot.states:
        series.add(names.JOBS, snapshot.jobs_by_state.get(state, 0), state)
    for outcome, count in snapshot.ticks.items():
        series.add(names.CONTROLLER_TICKS, count, outcome)
    series.add(names.CLUSTER_REACHABLE, snapshot.is_cluster_reachable)


def _add_job(series: Series, job: LiveJob, states: Sequence[str]) -> None:
    job_id = job.job_id
    series.add(names.JOB_INFO, 1, job_id, job.name, job.engine, str(job.zero_stage))
    for state in states:
        series.add(names.JOB_STATE, state == job.state, job_id, state)
    series.add(names.JOB_STEP, job.step, job_id)
    series.add(names.JOB_TARGET_STEPS, job.target_steps, job_id)
    series.add(names.JOB_WORLD_SIZE, job.world_size, job_id)
    series.add(names.JOB_TOKENS, job.tokens, job_id)
    series.add(names.RECOVERY_SECONDS, job.recovery_seconds, job_id)
    for failure_class, count in sorted(job.restarts.items()):
        series.add(names.JOB_RESTARTS, count, job_id, failure_class)
    if job.samples:
        newest = max(job.samples, key=lambda sample: sample.step)
        series.add(names.JOB_LOSS, newest.loss, job_id)
        series.add(names.JOB_VALIDATION_LOSS, newest.validation_loss, job_id)
        series.add(names.JOB_GRAD_NORM, newest.grad_norm, job_id)
        series.add(names.JOB_LEARNING_RATE, newest.learning_rate, job_id)


def _add_ranks(series: Series, job: LiveJob) -> None:
    samples = {str(sample.rank): sample for sample in sorted(job.samples, key=lambda sample: sample.rank)}
    for rank, value in _per_rank({rank: sample.step_seconds for rank, sample in samples.items()}):
        series.add(names.JOB_STEP_SECONDS, value, job.job_id, rank)
    for rank, value in _per_rank({rank: sample.rss_bytes for rank, sample in samples.items()}):
        series.add(names.JOB_RSS_BYTES, value, job.job_id, rank)
    for category in sorted({category for sample in job.samples for category in sample.memory_bytes}):
        held = {r: s.memory_bytes[category] for r, s in samples.items() if category in s.memory_bytes}
        for rank, value in _per_rank(held):
            series.add(names.JOB_MEMORY_BYTES, value, job.job_id, rank, category)


def _per_rank(values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Each rank's value, or above the limit three that bound and centre them."""
    if len(values) <= RANK_SERIES_LIMIT:
        yield from values.items()
    else:
        yield "min", min(values.values())
        yield "mean", fmean(values.values())
        yield "max", max(values.values())


def _add_checkpoint(series: Series, job: LiveJob, now: datetime) -> None:
    series.add(names.CHECKPOINT_FAILURES, job.checkpoint_failures, job.job_id)
    checkpoint = job.checkpoint
    if checkpoint is None:
        return
    age_seconds = max(0.0, (now - checkpoint.published_at).total_seconds())
    series.add(names.CHECKPOINT_AGE_SECONDS, age_seconds, job.job_id)
    series.add(names.CHECKPOINT_STEP, checkpoint.step, job.job_id)
    series.add(names.CHECKPOINT_BYTES, checkpoint.total_bytes, job.job_id)
    series.add(names.CHECKPOINT_SECONDS, checkpoint.write_seconds, job.job_id)
    series.add(names.CHECKPOINT_STALL_SECONDS, checkpoint.stall_seconds, job.job_id)
