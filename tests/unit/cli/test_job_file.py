"""A job file on its way from the disk to the service."""

from pathlib import Path

import pytest

from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.job_file import JobFile, anchor_paths, missing_paths, read_job_file
from orchestrator.cli.yard_commands import quickstart_file

TEXT = "model: {kind: llama, size: nano}\ndata: {kind: text, path: python-stdlib}\n"
TASK = "model: {kind: task, target: 'mine:make'}\ndata: {kind: task}\n"


def job_file(text: str, *overrides: str) -> JobFile:
    return JobFile(text=text, source="job.yaml", overrides=overrides)


def test_the_quickstart_is_a_valid_job_file() -> None:
    spec = read_job_file(str(quickstart_file()), []).parse()
    assert spec.name == "quickstart"
    assert (spec.engine.kind, spec.engine.stage, spec.checkpoint.every_steps) == ("fsdp", 3, 20)
    assert spec.export == "safetensors"


def test_every_mistake_is_named_with_its_line_and_remedy() -> None:
    text = TEXT + "num_worker: 2\nlr: 1e-3\n"
    with pytest.raises(CliError) as caught:
        job_file(text).parse()
    assert caught.value.code is ExitCode.BAD_INPUT
    assert any("job.yaml:3" in problem and "num_worker" in problem for problem in caught.value.problems)
    assert any("job.yaml:4" in problem and "train.optimizer" in problem for problem in caught.value.problems)


def test_a_wrong_override_is_named_as_it_was_written() -> None:
    with pytest.raises(CliError) as caught:
        job_file(TEXT, "train.steps=-1").parse()
    assert "--set train.steps=-1" in caught.value.problems[0]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xff\xfe\x00name", "not UTF-8 text (byte 0 is 0xff)"),
        (b"#" * (1 << 21), "longer than 1048576 bytes"),
    ],
)
def test_what_is_no_job_file_is_refused_before_it_is_parsed(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(data)
    with pytest.raises(CliError, match=r".") as caught:
        read_job_file(str(path), [])
    assert told in caught.value.message
    assert caught.value.code is ExitCode.BAD_INPUT


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(CliError) as caught:
        read_job_file(str(tmp_path / name), [])
    assert caught.value.code is ExitCode.BAD_INPUT


def test_relative_paths_are_those_of_the_job_file(tmp_path: Path) -> None:
    given = job_file(TEXT, "data.path=corpus/it's")
    spec = anchor_paths(given, given.parse(), tmp_path).parse()
    assert spec.data.kind == "text"
    assert spec.data.path == str(tmp_path / "corpus" / "it's")
    assert spec.runtime.working_dir is None


def test_a_problem_with_a_path_that_was_made_whole_names_the_file(tmp_path: Path) -> None:
    given = job_file(TEXT, "data.path=corpus")
    whole = anchor_paths(given, given.parse(), tmp_path)
    (override,) = whole.anchored
    assert (
        whole.as_written(f"--set {override}: data.path: lies outside") == "job.yaml: data.path: lies outside"
    )


def test_a_working_dir_is_made_absolute(tmp_path: Path) -> None:
    given = job_file(TASK, "runtime.working_dir=src")
    assert anchor_paths(given, given.parse(), tmp_path).parse().runtime.working_dir == str(tmp_path / "src")


@pytest.mark.parametrize("path", ["python-stdlib", "/data/corpus", "s3://bucket/x"])
def test_paths_that_are_whole_stay_as_they_are(tmp_path: Path, path: str) -> None:
    given = job_file(TEXT, f"data.path={path}")
    assert anchor_paths(given, given.parse(), tmp_path) == given


def test_data_beside_a_shipped_working_dir_is_that_of_the_job_file_too(tmp_path: Path) -> None:
    given = job_file(TEXT, "data.path=corpus", "runtime.working_dir=/src")
    spec = anchor_paths(given, given.parse(), tmp_path).parse()
    assert spec.data.kind == "text"
    assert spec.data.path == str(tmp_path / "corpus")


def test_the_home_of_whoever_submits_is_meant_not_that_of_the_service(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    given = job_file(TEXT, "data.path=~/corpus", "runtime.working_dir=~/code")
    spec = anchor_paths(given, given.parse(), tmp_path).parse()
    assert spec.data.kind == "text"
    assert spec.data.path == str(tmp_path / "ada" / "corpus")
    assert spec.runtime.working_dir == str(tmp_path / "ada" / "code")


def test_a_tilde_of_no_user_is_a_name_like_others(tmp_path: Path) -> None:
    given = job_file(TEXT, "data.path=~nobody-of-this-name/corpus")
    spec = anchor_paths(given, given.parse(), tmp_path).parse()
    assert spec.data.kind == "text"
    assert spec.data.path == str(tmp_path / "~nobody-of-this-name" / "corpus")


DEEPSPEED = TEXT + "engine: {kind: deepspeed, raw: ds.json}\n"


def read_beside(directory: Path, text: str, raw: str) -> JobFile:
    (directory / "ds.json").write_text(raw)
    (directory / "job.yaml").write_text(text)
    return read_job_file(str(directory / "job.yaml"), [])


def test_a_deepspeed_configuration_is_read_from_the_file_that_the_job_names(tmp_path: Path) -> None:
    raw = '{"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}, "train_batch_size": "auto"}'
    job = read_beside(tmp_path, DEEPSPEED, raw)
    spec = anchor_paths(job, job.parse(), tmp_path).parse()
    assert spec.read_raw().tuning == {"reduce_bucket_size": 5e8}
    assert spec.read_raw().problems == ()


def test_what_it_contradicts_is_named_with_both_places_and_our_own_override_is_not(tmp_path: Path) -> None:
    with pytest.raises(CliError) as caught:
        read_beside(tmp_path, DEEPSPEED, '{"train_batch_size": 7}').parse()
    (problem,) = caught.value.problems
    assert "engine.raw.train_batch_size is 7 and train.batch.global_sequences is 32" in problem
    assert "--set" not in problem


@pytest.mark.parametrize(
    ("raw", "told"), [("{", "ds.json is not JSON"), ("[1]", "ds.json is no JSON object")]
)
def test_what_is_no_deepspeed_configuration_is_bad_input(tmp_path: Path, raw: str, told: str) -> None:
    with pytest.raises(CliError, match=told) as caught:
        read_beside(tmp_path, DEEPSPEED, raw)
    assert caught.value.code is ExitCode.BAD_INPUT


def test_a_deepspeed_configuration_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(DEEPSPEED)
    with pytest.raises(CliError, match=r"engine.raw: .*ds.json: No such file"):
        read_job_file(str(tmp_path / "job.yaml"), [])


@pytest.mark.parametrize("path", ["./corpus", "../else/corpus"])
def test_a_relative_path_that_leads_nowhere_is_told_with_where_it_was_looked_for(
    tmp_path: Path, path: str
) -> None:
    spec = job_file(TEXT.replace("python-stdlib", path)).parse()
    (told,) = missing_paths(spec, tmp_path)
    assert told.startswith(f"data.path: {path} is not here")
    assert str(tmp_path / path) in told
    (tmp_path / path).mkdir(parents=True)
    assert missing_paths(spec, tmp_path) == ()


@pytest.mark.parametrize("path", ["/nowhere/at/all", "python-stdlib"])
def test_a_path_that_the_nodes_alone_may_have_is_left_to_them(tmp_path: Path, path: str) -> None:
    spec = job_file(TEXT.replace("python-stdlib", path)).parse()
    assert missing_paths(spec, tmp_path) == ()
