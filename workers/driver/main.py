"""The composition of a driver: as a Ray job, or on this machine with a Ray of its own."""

import queue
import signal
from collections.abc import Mapping
from typing import Final

import ray

from workers.contract.launch import LAUNCH_ENV, REPORT_TOKEN_ENV, LaunchRequest
from workers.contract.report import Desired
from workers.contract.rundir import driver_log
from workers.driver.attempt import Attempt
from workers.driver.driver import Driver, stop_by
from workers.driver.effects import Input, StopAsked
from workers.driver.grant import GrantWatch
from workers.driver.remains import wait_for_the_end
from workers.driver.reporter import Listener, Reporter, logging_to
from workers.driver.requests import take_charge
from workers.driver.state import Outcome

_WORKERS_END_SECONDS: Final = 10.0  # Ray kills them at once; this is for a machine that is busy
_LAST_WORD_SECONDS: Final = 600.0  # an orchestrator that is away for longer starts another generation


def drive_job(environment: Mapping[str, str]) -> int:
    """Be the driver of a Ray job: the launch request is in the environment. Returns the exit code.

    0 once a final phase was reported, whatever it was; 1 if this driver gave up or nobody took its last word.
    """
    request = LaunchRequest.from_json(environment[LAUNCH_ENV])
    ray.init(log_to_driver=False)
    outcome, delivered = drive(request, token=environment.get(REPORT_TOKEN_ENV, ""))
    ray.shutdown()
    wait_for_the_end(request.job_id, seconds=_WORKERS_END_SECONDS)
    return 0 if delivered and outcome.phase != "lost" else 1


def drive(request: LaunchRequest, *, token: str, listener: Listener | None = None) -> tuple[Outcome, bool]:
    """Drive a generation on the Ray that this process is connected to. Main thread only: it takes the signals."""
    take_charge(request)
    log_file = driver_log(request.run_dir, generation=request.generation)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    logging_to(str(log_file))
    inbox: queue.SimpleQueue[Input] = queue.SimpleQueue()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # a Ray job is stopped by SIGTERM; after ray.init, which has its own
        signal.signal(number, lambda n, _: inbox.put(StopAsked(reason=signal.Signals(n).name)))

    def obey(desired: Desired) -> None:
        stop = stop_by(request, desired)
        if stop is not None:
            inbox.put(stop)

    reporter = Reporter(request, token=token, obey=obey, listener=listener)
    if request.report_url is not None:
        GrantWatch(
            lease_seconds=request.lease_seconds,
            orchestrator_heard_at=lambda: reporter.answered_at,
            put=inbox.put,
        )
    driver = Driver(
        request,
        reporter=reporter,
        make_group=lambda number, put: Attempt(request=request, number=number, put=put),
        inbox=inbox,
    )
    outcome = driver.conclude(driver.run())
    delivered = reporter.close(seconds=_LAST_WORD_SECONDS if outcome.phase != "lost" else 5.0)
    driver.leave()
    return outcome, delivered
