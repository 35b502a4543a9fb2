"""One generation's life with Ray: submitted, watched, stopped, released. The hands of `reconcile`."""

import logging
import secrets
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from typing import assert_never

from orchestrator.cluster import RayBackend, RayJobStatus
from orchestrator.forks import let_go
from orchestrator.intake import take_spool, token_digest
from orchestrator.job import Generation, GenerationState, Job, ray_job_id
from orchestrator.job_inputs import Input, Lost, Released, Submitted
from orchestrator.patience import Patience
from orchestrator.policy import Policy
from orchestrator.reconcile import (
    Action,
    Limits,
    MarkLost,
    MarkReleased,
    MarkSubmitted,
    Seen,
    StopRayJob,
    SubmitRayJob,
    phase_of,
    reconcile,
)
from orchestrator.run_dir.spool import read_samples, read_spool
from orchestrator.store import Store
from orchestrator.transition import transition
from orchestrator.working_dir import WorkingDirError
from workers.contract.failure import FailureClass, Verdict
from workers.contract.launch import LaunchRequest

logger = logging.getLogger(__name__)


class GenerationKeeper:
    """Used by the controller's thread alone."""

    def __init__(
        self,
        store: Store,
        backend: RayBackend,
        *,
        policy: Policy,
        now: Callable[[], datetime],
        patience: Patience,
    ) -> None:
        self._store = store
        self._backend = backend
        self._policy = policy
        self._now = now
        self._patience = patience
        self._tokens: dict[str, tuple[int, str]] = {}  # of a generation that Ray has not taken yet, by job

    def look_after(self, job: Job) -> None:
        """Do what the job's open generation needs now. Raises RayUnavailable; may be broken off anywhere."""
        assert job.current is not None
        ray_id = ray_job_id(job.id, job.generation)
        status = self._backend.status(ray_id)
        is_started = job.current.state is not GenerationState.GRANTED
        leftovers = tuple(self._backend.leftovers(ray_id)) if status.state.is_over and is_started else ()
        # Read again: a last word that came while Ray was asked must not be taken for a loss.
        job = self._store.job(job.id)
        if status.state.is_over:
            job = self._read_spool(job)
        generation = job.current
        assert generation is not None
        for action in self._decide(job, generation, status, leftovers):
            self._act(job, generation, action)

    def _decide(
        self, job: Job, generation: Generation, status: RayJobStatus, leftovers: tuple[str, ...]
    ) -> tuple[Action, ...]:
        phase = f"{generation.number}/{phase_of(job, generation, status, leftovers)}"
        seen = Seen(
            status=status,
            leftovers=leftovers,
            seconds_in_phase=self._patience.seconds_in(job.id, "phase", phase),
            seconds_since_stop=self._patience.seconds_since(job.id, "stop", str(generation.number)),
        )
        limits = Limits(
            stop_grace=self._policy.stop_grace_seconds, missing_grace=self._policy.missing_grace_seconds
        )
        return reconcile(job, generation, seen, limits)

    def _act(self, job: Job, generation: Generation, action: Action) -> None:
        number = generation.number
        match action:
            case SubmitRayJob():
                self._submit(job, generation)
            case MarkSubmitted():
                self._apply(job, Submitted(generation=number))
            case StopRayJob(reason=reason):
                logger.info("job %s: stop generation %d: %s", job.id, number, reason)
                self._backend.stop(ray_job_id(job.id, number))
                self._patience.restart(job.id, "stop", str(number))
            case MarkLost(verdict=verdict):
                logger.warning("job %s: %s", job.id, verdict.summary)
                self._apply(job, Lost(generation=number, verdict=verdict))
                self._patience.restart(job.id, "lost", str(number))
            case MarkReleased():
                self._tokens.pop(job.id, None)
                let_go(self._apply(job, Released(generation=number)), self._store.origin)
            case _:
                assert_never(action)

    def _submit(self, job: Job, generation: Generation) -> None:
        """Hand the generation to Ray. A token is written before it is given away; Ray takes a generation once."""
        token = self._report_token(job, generation.number)
        request = self._launch_request(job, generation)
        try:
            self._backend.submit(request, report_token=token, runtime=job.spec.runtime)
        except WorkingDirError as error:
            verdict = Verdict(failure_class=FailureClass.CONFIG, summary=f"config: {error}")
            self._apply(job, Lost(generation=generation.number, verdict=verdict))
            return
        self._tokens.pop(job.id, None)
        self._apply(job, Submitted(generation=generation.number))

    def _report_token(self, job: Job, generation: int) -> str:
        """Return a token that is stored; the same one for as long as Ray refuses the generation at every tick."""
        number, token = self._tokens.get(job.id, (0, ""))
        if number != generation:
            token = secrets.token_urlsafe(32)
            with self._store.unit(job.id) as unit:
                unit.add_report_token(generation, token_digest(token))
            self._tokens[job.id] = (generation, token)
        return token

    def _launch_request(self, job: Job, generation: Generation) -> LaunchRequest:
        return LaunchRequest(
            job_id=job.id,
            name=job.name,
            generation=generation.number,
            world_size=generation.gang.workers,
            gpus_per_worker=generation.gang.gpus_per_worker,
            config=job.spec.training(),
            run_dir=job.run_dir,
            origin=self._store.origin(job.id),
            storage_url=None if job.storage == job.run_dir else job.storage,
            counters=job.counters,
            version=version("shardyard"),
            report_url=self._policy.report_url,
            lease_seconds=self._policy.lease_seconds,
            placement_seconds=self._policy.placement_seconds,
            wait_seconds=self._lease_left(job, generation.number - 1),
        )

    def _lease_left(self, job: Job, earlier: int) -> float:
        """Return how long agents of the earlier generation may still run, if its driver did not end them itself."""
        before = self._store.generation(job.id, earlier)
        if before is None or before.final_phase is not None:
            return 0.0
        gone = self._patience.seconds_since(job.id, "lost", str(earlier)) or 0.0
        return max(0.0, self._policy.lease_seconds - gone)

    def _read_spool(self, job: Job) -> Job:
        """Take what the driver wrote down and could not report; once a generation, when its Ray job is over."""
        assert job.current is not None
        if job.current.state is not GenerationState.SUBMITTED:
            return job
        known = {s.rank: s for number, s in self._store.samples(job.id) if number == job.generation}
        try:
            spooled = read_spool(job.run_dir, generation=job.generation, after=job.current.acknowledged)
            measured = read_samples(job.run_dir, generation=job.generation, after=known.get(0))
        except OSError as error:
            logger.warning("job %s: the driver's spool cannot be read: %s", job.id, error)
            return job
        if not spooled and not measured:
            return job
        take_spool(self._store, job, spooled, samples=measured, now=self._now())
        return self._store.job(job.id)

    def _apply(self, job: Job, happened: Input) -> Job:
        with self._store.unit(job.id) as unit:
            return unit.save(transition(unit.job, happened, now=self._now()))
