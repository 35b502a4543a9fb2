"""From the text of a job file to a `JobSpec`, or to every mistake in it with its line and remedy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from orchestrator.errors import Problem, SpecError
from orchestrator.spec.model import JobSpec
from orchestrator.spec.overrides import apply_override
from orchestrator.spec.reader import read
from orchestrator.spec.translate import not_yet, translate
from orchestrator.spec.tree import Mapping, find, to_data

__all__ = ["JobSpec", "locate", "parse_spec", "schema", "written_at"]

PROBLEM_LIMIT: Final = 50  # more are not read by anybody


def parse_spec(text: str | bytes, *, overrides: Sequence[str] = (), source: str = "job.yaml") -> JobSpec:
    """Understand a job file; each override is `a.b=c`, its value read as YAML. Raises SpecError with every problem."""
    root = _root(text, source)
    for argument in overrides:
        apply_override(root, argument)
    later = list(not_yet(root))
    try:
        spec = JobSpec.model_validate(to_data(root))
    except ValidationError as error:
        found = translate(root, error.errors(include_url=False, include_input=False))
        raise SpecError(_without_echo(later, found)[:PROBLEM_LIMIT]) from error
    if later:
        raise SpecError(later)
    return spec


def written_at(
    path: Sequence[str], text: str | bytes, *, overrides: Sequence[str] = (), source: str = "job.yaml"
) -> Any:
    """Return what a job file says at one place, None where it says nothing. Raises SpecError."""
    root = _root(text, source)
    for argument in overrides:
        apply_override(root, argument)
    found = find(root, tuple(path))
    return to_data(found.node) if found.path == tuple(path) else None


def _root(text: str | bytes, source: str) -> Mapping:
    root = read(text, source=source)
    if isinstance(root, Mapping):
        return root
    rule = "the file is empty" if root is None else "the file is not a mapping of keys"
    remedy = "a job needs at least `model:` and `data:`"
    line = None if root is None else root.mark.line
    raise SpecError(
        [Problem(source=source, line=line, column=None, path="", value="", rule=rule, remedy=remedy)]
    )


def _without_echo(later: list[Problem], found: list[Problem]) -> list[Problem]:
    """Leave out what the models say of a key that was refused by name already."""
    named = tuple(problem.path for problem in later)
    kept = [p for p in found if not any(p.path == path or p.path.startswith(f"{path}.") for path in named)]
    return sorted([*later, *kept], key=lambda problem: (problem.line is None, problem.line or 0))


def locate(
    problems: Sequence[Problem], text: str | bytes, *, overrides: Sequence[str], source: str
) -> SpecError:
    """Give the problems that were found in an understood file their lines in it."""
    root = _root(text, source)
    for argument in overrides:
        apply_override(root, argument)
    placed = []
    for problem in problems:
        mark = find(root, tuple(problem.path.split("."))).mark
        placed.append(replace(problem, source=mark.source, line=mark.line, column=mark.column))
    return SpecError(placed)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, for editors and people."""
    described = JobSpec.model_json_schema()
    described["title"] = "shardyard job"
    _widen_num_workers(described)
    return described


def _widen_num_workers(described: dict[str, Any]) -> None:
    """Say that `num_workers` takes a number and a pair too: the models know only what these become."""
    field = described["$defs"]["Scaling"]["properties"]["num_workers"]
    width = {"$ref": field.pop("$ref", "#/$defs/Width")}
    count = {"type": "integer", "exclusiveMinimum": 0}
    pair = {"type": "array", "items": count, "minItems": 2, "maxItems": 2}
    field["anyOf"] = [count, pair, width]
