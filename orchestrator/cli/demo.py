"""The main job from nothing to an exported model, with one SIGKILL in mid-run; everything is down again at the end."""

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.api.views import JobView, SamplesView
from orchestrator.cli.connect import connected
from orchestrator.cli.demo_story import Kill, Story, summary
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.follow import Follower, result_code
from orchestrator.cli.job_file import JobFile
from orchestrator.cli.pictures.demo_report import demo_report, killed_line, up_line
from orchestrator.cli.screen import Screen
from orchestrator.cli.signals import ended_like_ctrl_c, not_interrupted
from orchestrator.cli.worker_process import run_worker
from orchestrator.cli.yard import Yard, bring_down, bring_up, is_up
from orchestrator.client import Client
from orchestrator.processes import family

TOKENS_TO_WRITE: Final = 256
PROMPT: Final = "def "
MIN_CPUS: Final = 2  # the quickstart asks for two workers of one CPU, whatever the machine has


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoHome:
    """The state directory of a demo, and what is left of it afterwards."""

    path: Path
    is_temporary: bool
    keep: bool


def run_demo(screen: Screen, job_file: JobFile, home: DemoHome, *, environ: Mapping[str, str]) -> ExitCode:
    """Run the whole demo; returns when everything is down again, or with `keep` while it is still up."""
    job_file.parse()
    environ = _own_environment(environ, home)
    with ExitStack() as stack:
        stack.enter_context(ended_like_ctrl_c())
        if not is_up(home.path):
            stack.callback(_take_down, screen, home)
        with screen.busy("Ray and the orchestrator are starting"):
            yard = bring_up(
                home.path,
                environ=environ,
                num_cpus=max(MIN_CPUS, os.cpu_count() or 1),
                num_gpus=None,
                with_ray=True,
                tell=lambda what, where, seconds: screen.show(up_line(what, where, seconds)),
            )
        client = stack.enter_context(connected(environ))
        story, job = (
            Story(),
            client.submit(job_file.text, overrides=job_file.all_overrides, source=job_file.source),
        )
        screen.show(up_line("Job", f"{job.name}  {job.id}", None), "")
        job = _follow(screen, client, yard, story, job)
        told = summary(story, job)
        with screen.busy("the exported model writes a few lines"):
            text = _generated(job, environ)
        screen.show(demo_report(story, job, client.samples(job.id), client.checkpoints(job.id), text=text))
    screen.emit({**told, "text": text, "url": yard.service.url if home.keep else None})
    if home.keep:
        screen.say(f"\nStill up: {yard.service.url}    end it: SHARDYARD_HOME={home.path} shardyard down")
    return result_code(job)


def _follow(screen: Screen, client: Client, yard: Yard, story: Story, job: JobView) -> JobView:
    def look(job: JobView, samples: SamplesView) -> None:
        story.look(samples)
        victim = story.victim(job)
        if victim is not None:
            story.kill = _kill(yard, rank=victim[0], pid=victim[1], step=job.step)
            screen.show(killed_line(story.kill))

    # No logs: what is to be seen here is the timeline; the ranks' last words lie in the run directory.
    follower = Follower(client, screen, job, wants_log=lambda log: False, on_event=story.hear, on_look=look)
    return follower.run()


def _kill(yard: Yard, *, rank: int, pid: int, step: int) -> Kill:
    """SIGKILL a rank, after making sure that the pid is a process of the cluster we started."""
    assert yard.cluster is not None
    if pid not in {process.pid for process in family(yard.cluster.ray.mark)}:
        raise CliError(
            f"rank {rank} is told to be process {pid}, which is none of this cluster's: not killed"
        )
    at = datetime.now(UTC)
    os.kill(pid, signal.SIGKILL)
    return Kill(rank=rank, pid=pid, at=at, step=step)


def _generated(job: JobView, environ: Mapping[str, str]) -> str:
    """Let the exported model write a few lines; empty where there is no export."""
    if job.result is None or job.result.export_path is None:
        return ""
    arguments = ["generate", job.result.export_path, "--prompt", PROMPT, "--num-tokens", str(TOKENS_TO_WRITE)]
    # One thread: the model is small, and threads that spin on shared cores would wait for each other.
    return run_worker(arguments, environment={**environ, "OMP_NUM_THREADS": "1"})


def _own_environment(environ: Mapping[str, str], home: DemoHome) -> dict[str, str]:
    """Leave out the SHARDYARD settings of the caller but the roots for data: a demo never talks to another yard."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("SHARDYARD_") or name == "SHARDYARD_ALLOWED_ROOTS"
    }
    port = {} if home.keep and not home.is_temporary else {"SHARDYARD_PORT": "0"}
    return {**kept, **port, "SHARDYARD_HOME": str(home.path)}


def _take_down(screen: Screen, home: DemoHome) -> None:
    """End everything unless it is to be kept. A second Ctrl-C does not stop that."""
    if home.keep:
        return
    with not_interrupted(), screen.busy("Ray and the orchestrator are ending"):
        bring_down(home.path)
    if home.is_temporary:
        _leave_only_runs(home.path)
    screen.aside("Ray and the orchestrator are down.")


def _leave_only_runs(home: Path) -> None:
    for path in home.iterdir():
        if path.name == "storage":
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        home.rmdir()  # nothing was run


def temporary_home() -> Path:
    """Make a new state directory that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="shardyard-"))
