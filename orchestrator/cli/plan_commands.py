"""plan: what a job will need, before it runs."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.command import FileArgument, JsonFlag, SetOption, command
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.job_file import anchor_paths, read_job_file
from orchestrator.cli.pictures.plan import plan_page
from orchestrator.cli.screen import Screen
from orchestrator.cli.worker_process import run_worker
from workers.contract.plan import Plan, device_bytes


@command
def plan(
    file: FileArgument,
    overrides: SetOption = [],  # noqa: B006 -- typer copies it
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Memory of each worker's device: h200, a100, 80GiB.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Without it `scaling.num_workers`.")
    ] = None,
    shows_all: Annotated[
        bool, typer.Option("--all", help="Every row, with recomputation and offload.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Say what a job needs under every engine and stage, and what fits.

    Needs no GPU and no cluster: parameters, gradients and optimizer state are the engines' own arithmetic, activations come from a run of the model with tensors that have no memory.
    """
    screen = Screen(as_json=as_json)
    named = [f"scaling.num_workers={workers}"] if workers is not None else []
    job_file = read_job_file(file, [*overrides, *named])
    spec = job_file.parse()
    spec = anchor_paths(job_file, spec, Path.cwd() if file == "-" else Path(file).resolve().parent).parse()
    arguments = ["--name", spec.name, "--workers", str(spec.training().scaling.num_workers.max)]
    if gpu is not None:
        arguments += ["--device", gpu, "--device-bytes", str(_bytes_of(gpu))]
    with tempfile.TemporaryDirectory(prefix="shardyard-plan-") as directory:
        config = Path(directory) / "config.json"
        config.write_text(spec.training().model_dump_json(), encoding="utf-8")
        with screen.busy("reading the model"):
            made = Plan.from_json(run_worker(["plan", str(config), *arguments]))
    rows = [
        row.model_dump(mode="json") | {"peak": row.peak, "fits": row.fits(made.device_bytes)}
        for row in made.rows
    ]
    screen.emit(made.model_dump(mode="json") | {"rows": rows})
    screen.show(plan_page(made, shows_all=shows_all))


def _bytes_of(gpu: str) -> int:
    try:
        return device_bytes(gpu)
    except ValueError as error:
        raise CliError(f"--gpu: {error}", code=ExitCode.BAD_INPUT) from error
