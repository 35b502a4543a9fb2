"""A job file as a tree of marked values: what was written, and where. Knows nothing of fields."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place: line and column are 1-based; None for what came from an override."""

    source: str
    line: int | None = None
    column: int | None = None


@dataclass(slots=True, kw_only=True)
class Scalar:
    """`value` is what YAML 1.2 reads; `text` is what was written."""

    value: Any
    text: str
    mark: Mark


@dataclass(slots=True, kw_only=True)
class Sequence:
    """A list."""

    items: "list[Node]"
    mark: Mark


@dataclass(slots=True, kw_only=True)
class Mapping:
    """Keys in the order of the file; each key has a place of its own."""

    entries: "dict[str, Entry]"
    mark: Mark


@dataclass(slots=True, kw_only=True)
class Entry:
    """One key of a mapping."""

    key_mark: Mark
    node: "Node"


Node = Scalar | Sequence | Mapping


def to_data(node: Node) -> Any:
    """Return plain dicts, lists and scalars. The depth of the tree is bounded by the reader."""
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return [to_data(item) for item in node.items]
        case Mapping():
            return {key: to_data(entry.node) for key, entry in node.entries.items()}


def as_written(node: Node) -> str:
    """Return the node as it was written: a list or mapping in flow style."""
    match node:
        case Scalar():
            return node.text
        case Sequence():
            return "[" + ", ".join(as_written(item) for item in node.items) + "]"
        case Mapping():
            pairs = (f"{key}: {as_written(entry.node)}" for key, entry in node.entries.items())
            return "{" + ", ".join(pairs) + "}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """As far as a path leads into the tree."""

    path: tuple[str | int, ...]  # the part that exists
    node: Node
    mark: Mark  # of the key, where the last part is one; else of the value


def find(root: Node, path: tuple[str | int, ...]) -> Found:
    """Follow `path` as far as it exists; parts that are not in the tree (a union's tag) are passed over."""
    taken: list[str | int] = []
    node, mark = root, root.mark
    for part in path:
        if isinstance(node, Mapping) and part in node.entries:
            entry = node.entries[str(part)]
            node, mark = entry.node, entry.key_mark
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            mark = node.mark
        else:
            continue
        taken.append(part)
    return Found(path=tuple(taken), node=node, mark=mark)


def dotted(path: tuple[str | int, ...]) -> str:
    """Spell a path as a person does: `train.optimizer.betas[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
