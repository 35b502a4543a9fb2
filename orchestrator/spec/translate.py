"""From what pydantic found to what a person can act on: place, value, rule, remedy."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from pydantic_core import ErrorDetails

from orchestrator.errors import Problem
from orchestrator.spec.keys import known_keys, meant_key
from orchestrator.spec.tree import Found, Mark, Node, Scalar, as_written, dotted, find
from orchestrator.spec.tree import Mapping as MappingNode
from workers.contract.config import NOT_YET

_VALUE_LIMIT: Final = 60  # characters of a value that a message repeats
_EXAMPLES: Final[Mapping[str, str]] = {
    "model": "add `model: {kind: llama, size: tiny}`",
    "data": "add `data: {kind: text, path: python-stdlib}`",
}
_PATTERNS: Final[Mapping[str, str]] = {
    "name": "is not a name: lower-case letters, digits and `-`, at most 63, first and last no `-`",
    "model.target": "is not `module:attribute`",
    "runtime.env": "is not the name of an environment variable",
}
# The one queue of this version: whatever is not the default is refused by name.
_QUEUE_DEFAULTS: Final[Mapping[str, Any]] = {"queue.name": "default", "queue.priority": 0}


def not_yet(root: Node) -> Iterator[Problem]:
    """Name every key or value that the design knows and this version does not have."""
    for path, values in NOT_YET.items():
        found = _written(root, path)
        if found is None:
            continue
        value = found.node.value if isinstance(found.node, Scalar) else as_written(found.node)
        remedy = values.get("*") or values.get(str(value))
        if remedy is not None:
            yield _problem(found.mark, path, _shown(found.node), "is not in this version", remedy)
    for path, default in _QUEUE_DEFAULTS.items():
        found = _written(root, path)
        if found is not None and not (isinstance(found.node, Scalar) and found.node.value == default):
            remedy = "leave it out: this version admits first come, first served"
            yield _problem(found.mark, path, _shown(found.node), "is not in this version", remedy)


def _written(root: Node, path: str) -> Found | None:
    parts = tuple(path.split("."))
    found = find(root, parts)
    return found if found.path == parts else None


def translate(root: Node, errors: Sequence[ErrorDetails]) -> list[Problem]:
    """Turn pydantic's errors into problems, one for each place, in the order of the file."""
    merged: dict[tuple[str, int | None, str], Problem] = {}
    for error in errors:
        problem = _translate_one(root, error)
        place = (problem.source, problem.line, problem.path)
        known = merged.get(place)
        merged[place] = problem if known is None else _join(known, problem)
    return sorted(merged.values(), key=lambda problem: (problem.line is None, problem.line or 0))


def _join(first: Problem, second: Problem) -> Problem:
    """Make one problem of two that a union's members have with one value."""
    rules = first.rule if second.rule in first.rule else f"{first.rule} and {second.rule}"
    return Problem(
        source=first.source,
        line=first.line,
        column=first.column,
        path=first.path,
        value=first.value,
        rule=rules,
        remedy=first.remedy or second.remedy,
    )


def _translate_one(root: Node, error: ErrorDetails) -> Problem:
    found = find(root, error["loc"])
    match error["type"]:
        case "extra_forbidden":
            return _unknown_key(root, found)
        case "missing":
            return _missing(found, error["loc"][-1])
        case "union_tag_not_found":
            return _missing(found, "kind")
        case "union_tag_invalid":
            kind = find(root, (*found.path, "kind"))
            options = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected_tags", "")))
            return _not_one_of(kind, options)
        case "literal_error":
            expected = str(error.get("ctx", {}).get("expected", ""))
            return _not_one_of(found, re.findall(r"'([^']*)'", expected) or [expected])
        case "value_error":
            return _broken_rule(root, found, error)
        case "model_type" | "model_attributes_type":
            return _not_a_mapping(found)
        case _:
            rule, remedy = _rule(found, error)
            return _problem(found.mark, dotted(found.path), _shown(found.node), rule, remedy)


def _problem(mark: Mark, path: str, value: str, rule: str, remedy: str = "") -> Problem:
    return Problem(
        source=mark.source,
        line=mark.line,
        column=mark.column,
        path=path,
        value=value,
        rule=rule,
        remedy=remedy,
    )


def _shown(node: Node) -> str:
    """Return the value as written, shortened; an empty one is said by its rule."""
    text = as_written(node)
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 3] + "..."


def _unknown_key(root: Node, found: Found) -> Problem:
    parent = find(root, found.path[:-1])
    taken = parent.node.entries if isinstance(parent.node, MappingNode) else {}
    keys = tuple(str(part) for part in found.path)
    remedy = meant_key(keys[-1], parent=keys[:-1], taken=taken)
    return _problem(found.mark, dotted(found.path), "", "is not a known key", remedy)


def _missing(found: Found, key: str | int) -> Problem:
    path = dotted((*found.path, key))
    remedy = _EXAMPLES.get(path, "")
    if key == "kind":
        remedy = _EXAMPLES.get(dotted(found.path), "").replace("add", "for example", 1)
    return _problem(found.mark, path, "", "is missing", remedy)


def _not_one_of(found: Found, options: Sequence[str]) -> Problem:
    near = get_close_matches(as_written(found.node).lower(), options, n=1, cutoff=0.6)
    named = ", ".join(f"`{option}`" for option in options)
    rule = f"is not one of {named}" if len(options) > 1 else f"is not {named}"
    remedy = f"did you mean `{near[0]}`?" if near else ""
    return _problem(found.mark, dotted(found.path), _shown(found.node), rule, remedy)


def _not_a_mapping(found: Found) -> Problem:
    path = dotted(found.path)
    if isinstance(found.node, Scalar) and found.node.value is None:
        rule, remedy = "is empty", _EXAMPLES.get(path, "leave the key out for its defaults")
    elif path == "scaling.num_workers":
        rule, remedy = "is not a number of workers", "write `4`, `[2, 8]` or `{min: 2, max: 8, step: 2}`"
    else:
        keys = ", ".join(f"`{key}`" for key in known_keys().get(tuple(map(str, found.path)), ()))
        rule, remedy = "is not a mapping", f"its keys are {keys}"
    return _problem(found.mark, path, _shown(found.node), rule, remedy)


def _broken_rule(root: Node, found: Found, error: ErrorDetails) -> Problem:
    """Place a rule over several keys at the first one that its message names and the file holds."""
    message = str(error.get("ctx", {}).get("error", error["msg"]))
    if isinstance(found.node, Scalar) and not message.startswith(("min ", "max ")):
        return _problem(found.mark, dotted(found.path), _shown(found.node), message)
    first_word = tuple(message.split(" ", 1)[0].split("."))
    named = find(root, (*found.path, *first_word))
    mark = named.mark if len(named.path) > len(found.path) else found.mark
    return _problem(mark, dotted(found.path), "", message)


def _rule(found: Found, error: ErrorDetails) -> tuple[str, str]:
    """Return rule and remedy of an error that concerns one value alone."""
    context = error.get("ctx", {})
    value = found.node.value if isinstance(found.node, Scalar) else found.node
    if value is None:
        return "is empty", "leave the key out for its default"
    match error["type"]:
        case "greater_than":
            return f"is not > {_number(context['gt'])}", ""
        case "greater_than_equal":
            return f"is not >= {_number(context['ge'])}", ""
        case "less_than_equal":
            return f"is not <= {_number(context['le'])}", ""
        case "int_type":
            return "is not a whole number", _as_integer(value)
        case "float_type" | "float_parsing":
            return "is not a number", ""
        case "finite_number":
            return "is not a finite number", ""
        case "bool_type" | "bool_parsing":
            return "is not `true` or `false`", ""
        case "tuple_type":
            return "is not a list", ""
        case "too_long":
            return f"holds more than {context['max_length']} values", ""
        case "dict_type":
            return "is not a mapping", "write `{KEY: value}`"
        case "string_type":
            return "is not text", f'put it in quotes: "{as_written(found.node)}"'
        case "string_pattern_mismatch" | "string_too_long":
            return _pattern(found), ""
        case _:
            message = error["msg"]
            return f"is wrong: {message[0].lower()}{message[1:]}", ""


def _number(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def _as_integer(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write {value:.0f}"
    if isinstance(value, str) and value.isdecimal() and len(value) <= 10:
        return f"write {int(value)}, without quotes or leading zeros"
    return ""


def _pattern(found: Found) -> str:
    path = dotted(found.path)
    return next(
        (rule for prefix, rule in _PATTERNS.items() if path == prefix or path.startswith(f"{prefix}.")),
        "is not of the right form",
    )
