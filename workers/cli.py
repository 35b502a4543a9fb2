"""`shardyard-worker`: what runs on nodes, and what needs torch without a cluster. People use `shardyard`."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter

from workers.contract.config import TrainingConfig
from workers.contract.data_config import TokenData
from workers.driver.local_home import local_home
from workers.errors import WorkerError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
data_app = typer.Typer(no_args_is_help=True, help="Token files.")
app.add_typer(data_app, name="data")
ops_app = typer.Typer(no_args_is_help=True, help="What of DeepSpeed is compiled, for offload to NVMe.")
app.add_typer(ops_app, name="ops")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except WorkerError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise SystemExit(2) from error


# Each command imports what it needs: `drive` must stay free of torch, and the others of Ray.


@app.command()
def drive() -> None:
    """Be the driver of a Ray job; the launch request is in the environment."""
    from workers.driver.main import drive_job

    code = drive_job(dict(os.environ))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(
        code
    )  # an attempt that was never placed may still wait for Ray, which ends who asks it after shutdown


@app.command()
def local(
    config: Annotated[Path, typer.Argument(help="A training config as JSON; `-` reads standard input.")],
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    name: Annotated[str, typer.Option(help="Names the run directory.")] = "run",
    run_dir: Annotated[Path | None, typer.Option(help="Continue what lies there, or start there.")] = None,
    resume_from: Annotated[str | None, typer.Option(help="A checkpoint's name.")] = None,
    origin: Annotated[
        str | None,
        typer.Option(metavar="RUN[@STEP]", help="Fork another run: its directory or URL, and a step."),
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json-lines", help="One JSON object a line.")] = False,
) -> None:
    """Run a job on this machine without a service. Exit code: 0 finished, 1 failed, 3 stopped, 4 not placed."""
    text = sys.stdin.read() if str(config) == "-" else config.read_text(encoding="utf-8")
    training = TrainingConfig.model_validate_json(text)
    with local_home(os.environ) as home:
        from workers.driver.local import LineListener, run_local
        from workers.driver.local_request import make_request

        request = make_request(
            training, name=name, workers=workers, run_dir=run_dir, resume_from=resume_from, origin=origin
        )
        code = run_local(request, LineListener(sys.stdout, json_lines=json_lines), home)
    raise SystemExit(code)


@app.command()
def plan(
    config: Annotated[Path, typer.Argument(help="A training config as JSON.")],
    name: Annotated[str, typer.Option(help="The job's name.")],
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")],
    device: Annotated[str | None, typer.Option(help="What the device is called.")] = None,
    device_bytes: Annotated[int | None, typer.Option(min=1, help="Its memory.")] = None,
) -> None:
    """Print what the job needs of each rank under every engine and stage, as JSON."""
    from workers.planner.plan import make_plan

    training = TrainingConfig.model_validate_json(config.read_bytes())
    made = make_plan(training, name=name, workers=workers, device=device, device_bytes=device_bytes)
    typer.echo(made.to_json())


@app.command()
def export(
    run_dir: Annotated[str, typer.Argument(help="A run directory, or the URL of a run's storage.")],
    to: Annotated[Path, typer.Option(help="The directory to write.")],
    checkpoint: Annotated[
        str | None, typer.Option(help="Its step or name; the newest published if left out.")
    ] = None,
    max_shard_bytes: Annotated[
        int | None, typer.Option(min=1, help="Weights of a file at most; 5 GB if left out.")
    ] = None,
) -> None:
    """Write a checkpoint's model as safetensors; prints as JSON which one it was."""
    from workers.export import DEFAULT_SHARD_BYTES
    from workers.export import export as export_checkpoint

    cap = max_shard_bytes or DEFAULT_SHARD_BYTES
    typer.echo(export_checkpoint(run_dir, checkpoint, _config_of(run_dir), to, max_shard_bytes=cap).to_json())


@app.command()
def checkpoints(
    run_dir: Annotated[str, typer.Argument(help="A run directory, or the URL of a run's storage.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte.")] = False,
    only: Annotated[str | None, typer.Option(help="With --verify: this step or name alone.")] = None,
    pin: Annotated[str | None, typer.Option(help="A step or name to keep.")] = None,
    unpin: Annotated[str | None, typer.Option(help="A step or name to keep no longer.")] = None,
) -> None:
    """Print a run's checkpoints, newest first, as JSON, one a line; `problem` says what is wrong with one."""
    from workers.checkpointing import inspect

    if pin is not None:
        inspect.pin(run_dir, pin)
    if unpin is not None:
        inspect.unpin(run_dir, unpin)
    for row in inspect.verify_all(run_dir, only) if verify else inspect.list_stored(run_dir):
        typer.echo(row.to_json())


@app.command()
def generate(
    directory: Annotated[Path, typer.Argument(help="An exported Llama model.")],
    prompt: Annotated[str, typer.Option(help="What to continue.")] = "def ",
    num_tokens: Annotated[int, typer.Option(min=1)] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Let an exported model write."""
    from workers.models.generate import generate_text

    typer.echo(
        prompt + generate_text(directory, prompt, num_tokens=num_tokens, temperature=temperature, seed=seed)
    )


@data_app.command()
def prepare(
    section: Annotated[str, typer.Argument(help="The `data` section of a job as JSON.")],
    to: Annotated[Path, typer.Option(help="The directory to write; missing or empty.")],
    address: Annotated[str | None, typer.Option(help="A Ray cluster; without it one of our own.")] = None,
    part_bytes: Annotated[
        int | None, typer.Option(min=1, help="Source bytes of a token file at least.")
    ] = None,
) -> None:
    """Turn rows into token files that `data.kind: tokens` reads; prints the index of each directory, one a line."""
    data = TypeAdapter[TokenData](TokenData).validate_json(section)
    with local_home(os.environ) if address is None else nullcontext(Path()) as home:
        from workers.prepare_tokens import PART_BYTES, prepare_tokens, ray_for_preparing

        with ray_for_preparing(address, home):
            indexes = prepare_tokens(data, to, part_bytes=part_bytes or PART_BYTES)
    for name, index in indexes.items():
        typer.echo(json.dumps({"directory": str(to.absolute() / name), **index.model_dump(mode="json")}))


DeviceOption = Annotated[str | None, typer.Option(help="`cpu` or `cuda`; that of this machine if left out.")]


@ops_app.command()
def build(device: DeviceOption = None) -> None:
    """Compile what is missing, once for each environment; a minute of one core."""
    from workers.engines.deepspeed.ops import build_ops, device_here

    for path in build_ops(device or device_here()):
        typer.echo(str(path))


@ops_app.command()
def check(device: DeviceOption = None) -> None:
    """Tell as JSON what is built, and what to do about the rest. Exit code 1 if something is missing."""
    from workers.engines.deepspeed.ops import OPS, REMEDY, device_here, missing_ops

    missing = missing_ops(device or device_here())
    built = [op for op in OPS if op not in missing]
    typer.echo(json.dumps({"built": built, "missing": missing, "remedy": REMEDY if missing else ""}))
    raise SystemExit(1 if missing else 0)


def _config_of(run_dir: str) -> TrainingConfig:
    """The config of the newest generation that took charge of a run."""
    from workers.driver.requests import newest_request

    request = newest_request(run_dir)
    if request is None:
        raise typer.BadParameter(f"{run_dir} is no run directory: it holds no request.g<generation>.json")
    return request.config


if __name__ == "__main__":
    main()
