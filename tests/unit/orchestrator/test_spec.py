"""What a job file may say, and how each mistake in it is named."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import SpecError
from orchestrator.spec import JobSpec, parse_spec, schema

BASE = "model: {kind: llama}\ndata: {kind: text, path: python-stdlib}\n"


def refusal(text: str | bytes, *overrides: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, overrides=overrides)
    return caught.value


def test_two_keys_are_a_whole_job_file() -> None:
    spec = parse_spec(BASE)
    assert (spec.name, spec.queue.name, spec.train.steps) == ("job", "default", 200)


@pytest.mark.parametrize(
    "text", ["1e-4", "1E-4", "1.0e-4", "1.E-4", ".0001", "0.0001", "'1e-4'", '"1e-4"', "+1e-4"]
)
def test_every_spelling_of_a_learning_rate_is_the_same_number(text: str) -> None:  # B131
    spec = parse_spec(f"{BASE}train: {{optimizer: {{lr: {text}}}}}")
    assert spec.train.optimizer.lr == 1e-4


@pytest.mark.parametrize(("text", "value"), [("1_000", 1000), ("0o10", 8), ("0x10", 16), ("+7", 7)])
def test_integers_have_their_obvious_value(text: str, value: int) -> None:  # B131
    assert parse_spec(f"{BASE}train: {{steps: {text}}}").train.steps == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e3", "train.steps: 1e3 is not a whole number (write 1000)"),
        ("true", "train.steps: true is not a whole number"),
        ("", "train.steps: is empty (leave the key out for its default)"),
        ("null", "train.steps: null is empty"),
        ("'16'", "train.steps: '16' is not a whole number (write 16, without quotes or leading zeros)"),
        ("010", "train.steps: 010 is not a whole number"),
        ("no", "train.steps: no is not a whole number"),
        ("0", "train.steps: 0 is not > 0"),
        ("-5", "train.steps: -5 is not > 0"),
        ("9" * 5000, "train.steps: 9"),
        ("99999999999", "train.steps: 99999999999 is not <= 1000000000"),
    ],
)
def test_an_odd_integer_is_refused_by_its_field(text: str, message: str) -> None:  # B131
    assert f"job.yaml:3: {message}" in str(refusal(f"{BASE}train: {{steps: {text}}}"))


@pytest.mark.parametrize("text", ["true", ".nan", ".inf", "-1", "0", "fast", "[1]"])
def test_what_is_no_learning_rate_is_refused_by_its_field(text: str) -> None:  # B131
    (problem,) = refusal(f"{BASE}train:\n  optimizer:\n    lr: {text}\n").problems
    assert (problem.line, problem.path) == (5, "train.optimizer.lr")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("scaling:\n  num_worker: 3", 4, "scaling.num_worker: is not a known key (did you mean `num_workers`?)"),
        ("engine:\n  strategi: x", 4, "engine.strategi: is not a known key (did you mean `engine.kind`?)"),
        ("lr: 1e-4", 3, "lr: is not a known key (`lr` belongs under `train.optimizer`)"),
        ("train:\n  lr: 1e-4", 4, "train.lr: is not a known key (`lr` belongs under `train.optimizer`)"),
        ("checkpoint:\n  enable: false", 4, "checkpoint.enable: is not a known key (`checkpoint` takes"),
        ("train: {steps: 1}\ntrain: {steps: 2}", 4, "train: is given twice, first in line 3"),
        ("train:\n  steps: 1\n  steps: 1", 5, "steps: is given twice, first in line 4"),
        ("<<: {steps: 1}", 3, "<<: is not a known key"),
    ],
)  # fmt: skip
def test_a_mistyped_or_misplaced_key_is_refused_with_its_line_and_a_remedy(
    text: str, line: int, message: str
) -> None:  # B132
    assert f"job.yaml:{line}: {message}" in str(refusal(BASE + text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nested deeper", "a: " + "[" * 5000 + "]" * 5000),
        ("nested deeper", "{a: " * 5000),
        ("more than the limit", "a: 1\n" * 4_000_000),
        ("more than 10000 values", "a: [" + "1," * 60_000 + "]"),
        ("the file is empty", ""),
        ("the file is empty", "# only a comment\n"),
        ("not a mapping", "- 1\n- 2\n"),
        ("not a mapping", "text"),
        ("a second document", f"{BASE}---\n{BASE}"),
        ("is not YAML", "a\x00b: 1"),
        ("is not YAML", "a: 'b"),
        ("indent with spaces", "a:\n\tb: 1"),
        ("needs quotes", "a: b: c"),
    ],
)
def test_a_file_that_is_no_job_is_refused_after_bounded_work(name: str, text: str) -> None:  # B134
    assert name in str(refusal(text))


def test_bytes_that_are_not_utf8_are_refused() -> None:  # B134
    assert "is not UTF-8" in str(refusal(b"\x7fELF\xff\xfe"))


def test_a_byte_order_mark_and_carriage_returns_change_nothing() -> None:  # B134
    odd = b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode()
    assert parse_spec(odd) == parse_spec(BASE)


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['touch marker']",
        "a: !!python/module:os x",
        "a: !!python/tuple [1]",
        "a: !!str 1",
        "!custom a: 1",
    ],
)
def test_tags_are_refused_and_construct_nothing(text: str) -> None:  # B143
    assert "tags are not allowed" in str(refusal(text))


@pytest.mark.parametrize(
    "line",
    [
        r'runtime: {env: {A: "\ud800"}}',
        r'runtime: {env: {A: "\0"}}',
        r'runtime: {working_dir: "/\udfff"}',
        r'"\ud800": 1',
    ],
)
def test_what_no_file_name_or_environment_can_hold_is_refused_in_its_line(line: str) -> None:  # B144
    assert "job.yaml:3: this text holds a NUL or half a character" in str(refusal(BASE + line))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train: {optimizer: {betas: 0.9}}", "train.optimizer.betas: 0.9 is not a list"),
        ("train: {optimizer: {betas: [0.9, 0.9, 0.9]}}", "betas: [0.9, 0.9, 0.9] holds more than 2 values"),
        ("runtime: {env: 5}", "runtime.env: 5 is not a mapping"),
    ],
)
def test_a_value_of_the_wrong_shape_is_told_in_the_words_of_the_file(line: str, message: str) -> None:
    assert message in str(refusal(BASE + line))


def test_anchors_cannot_multiply() -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\n"
    assert "anchors are not allowed" in str(refusal(bomb))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scaling: {num_workers: [4, 2]}", "scaling.num_workers: min 4 is greater than max 2"),
        ("scaling: {num_workers: {min: 0, max: 2}}", "scaling.num_workers.min: 0 is not > 0"),
        ("scaling: {num_workers: {min: 1, max: 0}}", "scaling.num_workers.max: 0 is not > 0"),
        ("scaling: {num_workers: -3}", "scaling.num_workers: -3 is not > 0"),
        ("scaling: {num_workers: 2.5}", "scaling.num_workers: 2.5 is not a number of workers"),
        ("scaling: {num_workers: 1000000}", "scaling.num_workers: max 1000000 is more than the 4096 workers"),
        (
            "scaling: {num_workers: 4}\ntrain: {batch: {global_sequences: 2}}",
            "train.batch.global_sequences 2 is below scaling.num_workers max 4",
        ),
        ("engine: {kind: ddp, zero_stage: 3}", "zero_stage 3 needs `kind: fsdp`"),
        ("engine: {kind: ddp, offload: {optimizer: cpu}}", "offload needs an engine that shards"),
        ("engine: {zero_stage: 1}", "fsdp has no stage 1"),
        ("engine: {zero_stage: 4}", "engine.zero_stage: 4 is not <= 3"),
    ],
)  # fmt: skip
def test_bounds_that_contradict_are_refused_with_the_rule(text: str, message: str) -> None:  # B135
    assert message in str(refusal(BASE + text))


def test_stage_three_with_one_worker_is_accepted_and_means_that_one_rank_holds_all() -> None:  # B135
    spec = parse_spec(f"{BASE}engine: {{zero_stage: 3}}\nscaling: {{num_workers: 1}}")
    assert (spec.engine.stage, spec.scaling.num_workers.widths()) == (3, (1,))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("engine: {kind: auto}", "engine.kind"),
        ("engine: {zero_stage: auto}", "engine.zero_stage"),
        ("failure: {on_nan: rollback}", "failure.on_nan"),
        ("queue: {priority: 3}", "queue.priority"),
        ("queue: {name: fast}", "queue.name"),
        ("queue: {preemptible: true}", "queue.preemptible"),
    ],
)
def test_what_a_later_version_brings_is_refused_by_name_once(text: str, path: str) -> None:
    (problem,) = refusal(BASE + text).problems
    assert (problem.path, problem.rule) == (path, "is not in this version")
    assert problem.remedy


def test_every_problem_is_told_at_once_in_the_order_of_the_file() -> None:
    error = refusal("model: {kind: lama}\ndata: {kind: text}\ntrain: {steps: x}\n")
    assert [p.line for p in error.problems] == [1, 2, 3]
    assert "did you mean `llama`?" in error.problems[0].remedy


def test_a_missing_model_is_shown_how_to_write() -> None:
    assert "model: is missing (add `model: {kind: llama, size: tiny}`)" in str(refusal("train: {steps: 1}"))


def test_an_override_is_one_more_line_of_the_file() -> None:
    spec = parse_spec(BASE, overrides=["train.steps=5", "scaling.num_workers=[1, 2]", "name=a-b"])
    assert (spec.train.steps, spec.scaling.num_workers.max, spec.name) == (5, 2, "a-b")


@pytest.mark.parametrize(
    "argument", ["train.steps", "=1", "train..steps=1", "model.kind.x=1", "a=[1", "train.steps=x"]
)
def test_a_wrong_override_is_refused_by_its_own_text(argument: str) -> None:
    assert all(p.source == f"--set {argument}" for p in refusal(BASE, argument).problems)


@pytest.mark.parametrize("name", ["A", "a b", "-a", "a-", "ü", "a" * 64, '"a\\nb"', "a.b", "../a"])
def test_a_name_is_a_dns_label(name: str) -> None:  # B108, B144
    assert "name" in str(refusal(f"{BASE}name: {name}"))


def test_equal_meaning_has_an_equal_digest() -> None:
    spelled = f"# a comment\n{BASE}train:\n  steps: 200\n"
    assert parse_spec(spelled).digest() == parse_spec(BASE).digest()
    assert parse_spec(BASE, overrides=["train.steps=3"]).digest() != parse_spec(BASE).digest()


@given(
    steps=st.integers(1, 10**9),
    lr=st.floats(1e-9, 1e3),
    name=st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True),
)
@settings(max_examples=50)
def test_a_spec_survives_json(steps: int, lr: float, name: str) -> None:
    spec = parse_spec(
        BASE, overrides=[f"train.steps={steps}", f"train.optimizer.lr={lr!r}", f"name='{name}'"]
    )
    assert (spec.train.steps, spec.train.optimizer.lr, spec.name) == (steps, lr, name)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@given(st.text(max_size=200) | st.binary(max_size=200))
@settings(max_examples=200)
def test_any_text_is_a_spec_or_a_refusal(text: str | bytes) -> None:
    with suppress(SpecError):  # nothing else may come out
        assert parse_spec(text).name


def test_the_schema_is_json_and_names_what_num_workers_takes() -> None:
    described = json.loads(json.dumps(schema()))
    assert {"model", "data"} <= set(described["required"])
    assert len(described["$defs"]["Scaling"]["properties"]["num_workers"]["anyOf"]) == 3


def test_the_schema_says_of_each_path_where_a_relative_one_begins() -> None:
    definitions = schema()["$defs"]
    for kind in ("TextData", "JsonlData", "ParquetData", "TokensData"):
        assert "the job file's directory" in definitions[kind]["properties"]["path"]["description"]
    assert (
        "the service's storage root" in definitions["Checkpoint"]["properties"]["storage_path"]["description"]
    )
