"""`--set a.b=c`: one more line of the job file, said on the command line."""

import re
from dataclasses import replace
from typing import Final

from orchestrator.errors import Problem, SpecError
from orchestrator.spec.reader import read
from orchestrator.spec.tree import Entry, Mapping, Mark, Node, Scalar

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)=(.*)", re.DOTALL)


def apply_override(root: Mapping, argument: str) -> None:
    """Set one value in the tree, mappings on the way are made; the value is read as YAML. Raises SpecError."""
    source = f"--set {argument}"
    found = _ASSIGNMENT.fullmatch(argument)
    if found is None:
        raise _refusal(source, "", "is not `key.key=value`", "for example `--set train.steps=100`")
    path, text = found.group(1).split("."), found.group(2)
    mark = Mark(source=source)
    value = _read_value(text, source) or Scalar(value=None, text="", mark=mark)
    here = root
    for depth, key in enumerate(path[:-1], start=1):
        entry = here.entries.setdefault(key, Entry(key_mark=mark, node=Mapping(entries={}, mark=mark)))
        if not isinstance(entry.node, Mapping):
            place = ".".join(path[:depth])
            raise _refusal(source, place, "is not a mapping in the job file", f"set `{place}` as a whole")
        here = entry.node
    here.entries[path[-1]] = Entry(key_mark=mark, node=_moved(value, mark))


def _read_value(text: str, source: str) -> Node | None:
    try:
        return read(text, source=source)
    except SpecError as error:  # a line number within an argument says nothing
        raise SpecError([replace(problem, line=None, column=None) for problem in error.problems]) from error


def _moved(node: Node, mark: Mark) -> Node:
    """Return the value with the argument's own mark: its line numbers would mean nothing."""
    if isinstance(node, Mapping):
        entries = {
            key: Entry(key_mark=mark, node=_moved(entry.node, mark)) for key, entry in node.entries.items()
        }
        return Mapping(entries=entries, mark=mark)
    if isinstance(node, Scalar):
        return Scalar(value=node.value, text=node.text, mark=mark)
    node.items = [_moved(item, mark) for item in node.items]
    node.mark = mark
    return node


def _refusal(source: str, path: str, rule: str, remedy: str) -> SpecError:
    problem = Problem(source=source, line=None, column=None, path=path, value="", rule=rule, remedy=remedy)
    return SpecError([problem])
