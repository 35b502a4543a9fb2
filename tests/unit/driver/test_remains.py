"""Workers that Ray was told to end are waited for, and nobody else."""

import json
import os
import subprocess
import sys

from workers.contract.launch import LAUNCH_ENV
from workers.driver.remains import wait_for_the_end


def worker(job_id: str, *, seconds: float) -> "subprocess.Popen[bytes]":
    """As Ray's workers look: their own words on the command line, the launch request in the environment."""
    environment = {**os.environ, LAUNCH_ENV: json.dumps({"job_id": job_id})}
    code = f"import time; time.sleep({seconds})  # ray"
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


def test_workers_of_this_job_are_waited_for_and_named_if_they_stay() -> None:
    stays, other, leaves = worker("j1", seconds=600), worker("j2", seconds=600), worker("j3", seconds=0.3)
    try:
        assert wait_for_the_end("j1", seconds=0.2) == [stays.pid]
        assert wait_for_the_end("j3", seconds=60) == []
        assert wait_for_the_end("j4", seconds=60) == []
    finally:
        for process in (stays, other, leaves):
            process.kill()
            process.wait()
