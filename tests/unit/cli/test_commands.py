"""The commands as a shell runs them: against a real service that has no Ray, so that jobs wait."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.app import build_app
from orchestrator.cli.exit_code import MEANING
from orchestrator.settings import find_service
from workers.contract.rundir import rank_log

JOB = "name: first\nmodel: {kind: llama, size: nano}\ndata: {kind: text, path: python-stdlib}\n"
BOUND_SECONDS = 60.0
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a service that runs; it is ended by its pid."""
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    environ = {**kept, "SHARDYARD_HOME": str(home), "SHARDYARD_PORT": "0", "COLUMNS": "100"}
    with (home / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "from orchestrator.cli import main; main()", "serve"],
            env=environ,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + BOUND_SECONDS
        while find_service(environ) is None:
            assert process.poll() is None, (home / "service.log").read_text()
            assert time.monotonic() < deadline, "the service did not announce itself"
            time.sleep(0.05)
        yield environ
    finally:
        process.terminate()
        assert process.wait(BOUND_SECONDS) == 0, (home / "service.log").read_text()


@pytest.fixture
def run(yard: dict[str, str]) -> Run:
    """Run a command line in this process, with the environment of the service."""

    def call(*arguments: str, stdin: str | None = None, **environ: str) -> Result:
        unset: dict[str, str | None] = {n: None for n in os.environ if n.startswith("SHARDYARD_")}
        return CliRunner().invoke(
            build_app(),
            list(arguments),
            input=stdin,
            env={**unset, **yard, **environ},
            catch_exceptions=False,
        )

    return call


@pytest.fixture
def submitted(run: Run, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A job that waits, named after the test."""
    name = request.node.name.replace("_", "-").lower()[:50].strip("-")
    result = run("submit", "-", "--name", name, "--json", stdin=JOB)
    assert result.exit_code == 0, result.output
    job: dict[str, Any] = json.loads(result.stdout)
    return job


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- without a service


def test_help_tells_every_command_and_every_exit_code(run: Run) -> None:
    text = run("--help").stdout
    for word in ("demo", "submit", "checkpoints", "doctor", *(str(code.value) for code in MEANING)):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "name",
    [
        "up",
        "down",
        "serve",
        "demo",
        "submit",
        "validate",
        "schema",
        "ls",
        "show",
        "logs",
        "events",
        "cancel",
        "checkpoints",
        "export",
        "doctor",
    ],
)
def test_every_command_explains_itself_and_speaks_json(run: Run, name: str) -> None:
    text = run(name, "--help").stdout
    assert "--help" in text
    assert ("--json" in text) == (name != "serve")


def test_a_wrong_option_is_bad_input(run: Run) -> None:
    assert run("ls", "--limit", "none").exit_code == 2
    assert run("lst").exit_code == 2


def test_a_wrong_job_file_names_line_key_and_remedy_and_ends_with_2(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB + "num_worker: 2\n")
    for arguments in (["validate", str(path)], ["submit", str(path)], ["submit", str(path), "--local", "2"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert f"{path}:4: num_worker" in result.stderr.replace("\n  ", "")
        assert "num_workers" in result.stderr
        assert result.stdout == ""


def test_with_json_an_error_is_one_object_on_stdout(run: Run) -> None:
    result = run("validate", "-", "--json", stdin="name: x\n")
    assert result.exit_code == 2
    (told,) = objects(result)
    assert len(told["problems"]) == 2


def test_validate_says_what_of_a_deepspeed_configuration_has_no_effect(run: Run) -> None:
    engine = "engine: {kind: deepspeed, raw: {bfloat16: {enabled: true}, steps_per_print: 10}}\n"
    told = run("validate", "-", stdin=JOB + engine).stderr
    assert "warning: engine.raw.bfloat16.enabled is an old spelling of bf16.enabled" in told
    assert "warning: engine.raw.steps_per_print has no effect" in told


def test_validate_prints_the_file_with_every_default_filled_in(run: Run) -> None:
    (told,) = objects(run("validate", "-", "--set", "train.steps=7", "--json", stdin=JOB))
    assert told["train"]["steps"] == 7
    assert told["checkpoint"]["keep"] == 3


def test_the_schema_is_json_schema(run: Run) -> None:
    for arguments in (["schema"], ["schema", "--json"]):
        assert json.loads(run(*arguments).stdout)["required"] == ["model", "data"]


def test_without_a_service_the_remedy_is_told_and_the_code_is_4(run: Run, tmp_path: Path) -> None:
    result = run("ls", SHARDYARD_HOME=str(tmp_path))
    assert result.exit_code == 4
    assert "shardyard up" in result.stderr
    assert run("ls", SHARDYARD_URL="http://127.0.0.1:9").exit_code == 4


def test_a_wrong_setting_is_bad_input(run: Run) -> None:
    result = run("ls", SHARDYARD_URL="ftp://yard")
    assert result.exit_code == 2
    assert "SHARDYARD_URL" in result.stderr


def test_export_of_no_run_directory_is_bad_input(run: Run, tmp_path: Path) -> None:
    result = run("export", str(tmp_path))
    assert result.exit_code == 2
    assert "no checkpoints/" in result.stderr


def test_export_by_name_without_a_service_says_what_works_without_one(run: Run, tmp_path: Path) -> None:
    result = run("export", "first", SHARDYARD_HOME=str(tmp_path / "home"))
    assert result.exit_code == 4
    assert "shardyard up" in result.stderr
    assert "name the run's directory in place of first" in result.stderr
    assert f"below {tmp_path}/home/storage" in result.stderr


@pytest.mark.parametrize(("name", "told"), [("missing", "is no directory"), ("a,b", "holds a comma")])
def test_a_root_that_cannot_be_allowed_is_named_before_anything_starts(
    run: Run, tmp_path: Path, name: str, told: str
) -> None:
    (tmp_path / "a,b").mkdir()
    result = run("up", "--home", str(tmp_path / "home"), "--allow", str(tmp_path / name))
    assert result.exit_code == 2
    assert told in result.stderr
    assert not (tmp_path / "home").exists()


# ---- with a service


def test_data_that_jobs_may_not_read_is_named_as_the_file_has_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("python-stdlib", "./corpus"))
    result = run("submit", str(path))
    assert result.exit_code == 2
    assert f"{path}: data.path: {tmp_path}/corpus lies outside" in result.stderr
    assert "shardyard up --allow" in result.stderr
    assert "warning: data.path: ./corpus is not here" in result.stderr
    assert "is not here" in run("validate", str(path)).stderr


def test_a_wrong_token_is_told_with_where_it_comes_from(run: Run) -> None:
    result = run("ls", SHARDYARD_TOKEN="not-the-token-at-all")
    assert result.exit_code == 1
    assert "SHARDYARD_TOKEN" in result.stderr


def test_a_job_that_waits_says_what_for(run: Run, submitted: dict[str, Any]) -> None:
    assert submitted["state"] == "queued"
    deadline = time.monotonic() + BOUND_SECONDS
    while not (told := objects(run("show", submitted["id"], "--json"))[0])["reason"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert told["reason"] in run("ls").stdout
    assert told["reason"] in run("show", submitted["name"]).stdout


def test_the_same_key_makes_one_job(run: Run) -> None:
    first, second = (objects(run("submit", "-", "--key", "k1", "--json", stdin=JOB)) for _ in range(2))
    assert first[0]["id"] == second[0]["id"]
    other = run("submit", "-", "--key", "k1", "--set", "train.steps=9", stdin=JOB)
    assert other.exit_code == 1
    assert "key" in other.stderr


def test_a_list_says_when_it_is_cut(run: Run, submitted: dict[str, Any]) -> None:
    run("submit", "-", stdin=JOB)
    result = run("ls", "--limit", "1")
    assert "--all" in result.stderr
    assert len(objects(run("ls", "--all", "--json"))) > 1
    assert "--all" not in run("ls", "--all").stderr


def test_a_list_can_be_asked_by_state_and_name(run: Run, submitted: dict[str, Any]) -> None:
    found = objects(run("ls", "--state", "queued", "--name", submitted["name"], "--json"))
    assert [job["id"] for job in found] == [submitted["id"]]
    assert "No such jobs" in run("ls", "--state", "failed", "--name", submitted["name"]).stdout
    assert run("ls", "--state", "lost").exit_code == 2


@pytest.mark.parametrize("name", ["show", "logs", "events", "checkpoints", "cancel", "export"])
def test_a_job_that_nobody_knows_is_named(run: Run, name: str) -> None:
    result = run(name, "nobody")
    assert result.exit_code == 1
    assert "nobody" in result.stderr


@pytest.mark.parametrize("name", ["..", "a/../b", "%2e%2e"])
def test_a_name_that_is_none_never_reaches_the_service(run: Run, name: str) -> None:
    assert run("show", name).exit_code == 1


def test_a_cancelled_job_is_called_so_and_a_second_cancel_changes_nothing(
    run: Run, submitted: dict[str, Any]
) -> None:
    result = run("cancel", submitted["id"], "--reason", "a test")
    assert result.exit_code == 0, result.output
    assert f"{submitted['name']} is cancelled" in result.stdout
    again = run("cancel", submitted["id"])
    assert again.exit_code == 0
    assert "had already been cancelled" in again.stdout
    events = objects(run("events", submitted["id"], "--json"))
    assert any("a test" in event["message"] for event in events)


def test_following_a_cancelled_job_ends_with_its_own_code(run: Run, submitted: dict[str, Any]) -> None:
    run("cancel", submitted["id"])
    assert run("logs", submitted["id"], "--follow").exit_code == 3
    assert run("events", submitted["id"], "--follow").exit_code == 3


def test_what_a_job_has_not_got_yet_is_said(run: Run, submitted: dict[str, Any]) -> None:
    assert "no such log yet" in run("logs", submitted["id"]).stderr
    assert "published no checkpoint" in run("checkpoints", submitted["id"]).stdout
    assert "No logs" in run("logs", submitted["id"], "--list").stdout


def test_logs_without_a_line_are_said_to_have_none(
    yard: dict[str, str], run: Run, submitted: dict[str, Any]
) -> None:
    (job,) = objects(run("show", submitted["id"], "--json"))
    log = rank_log(job["run_dir"], generation=1, attempt=0, round_=0, rank=0)
    log.parent.mkdir(parents=True)
    log.touch()
    result = run("logs", submitted["id"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"{submitted['name']} wrote no log lines yet" in result.stderr
    log.write_text("a line\n")
    assert run("logs", submitted["id"]).stderr == ""


def test_ctrl_c_ends_the_looking_and_not_the_job(
    yard: dict[str, str], run: Run, submitted: dict[str, Any]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-uc", "from orchestrator.cli import main; main()", "logs", submitted["id"], "-f"],
        env=yard,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that starts tests in the background has them, and so their children, ignore SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            assert "queued" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=BOUND_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"shardyard cancel {submitted['name']}" in said
    assert objects(run("show", submitted["id"], "--json"))[0]["state"] == "queued"


INTERRUPTS_AN_IMPORT = """
import os, signal, sys
module = sys.argv[1]
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from orchestrator.cli import main
sys.argv[:2] = ["shardyard"]
main()
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["ls"]),
        ("pydantic", ["ls"]),
        ("orchestrator.cli.demo", ["demo"]),
        ("psutil", ["up"]),
        ("orchestrator.app", ["serve"]),
    ],
)
def test_ctrl_c_while_a_command_is_loaded_ends_it_quietly(
    tmp_path: Path, module: str, arguments: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS_AN_IMPORT, module, *arguments],
        env={**os.environ, "SHARDYARD_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(yard: dict[str, str], submitted: dict[str, Any]) -> None:
    program = f"{sys.executable} -c 'from orchestrator.cli import main; main()' schema"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{program} | head -n 1"],
        env=yard,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_the_doctor_finds_the_service_well(run: Run) -> None:
    found = {finding["subject"]: finding for finding in objects(run("doctor", "--json"))}
    assert found["Orchestrator"]["verdict"] == "ok"
    assert found["Ray cluster"]["verdict"] == "fail", "it has none"
    assert found["Ray cluster"]["remedy"]


def test_client_commands_load_no_heavy_library() -> None:
    program = (
        "import sys; from orchestrator.cli.app import build_app; build_app();"
        "print([n for n in ('ray', 'torch', 'fastapi', 'sqlalchemy', 'uvicorn', 'psutil') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
