"""From text to a tree. Reads YAML as a stream of events, so that depth, size and tricks are refused as they come.

Nothing is constructed from tags, anchors are refused (no expansion), and no step recurses with the input.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from orchestrator.errors import Problem, SpecError
from orchestrator.spec.scalars import read_plain
from orchestrator.spec.tree import Entry, Mapping, Mark, Node, Scalar, Sequence

SIZE_LIMIT_BYTES: Final = 256 * 1024
DEPTH_LIMIT: Final = 32
NODE_LIMIT: Final = 10_000
_NO_TEXT: Final = re.compile(
    "[\0\ud800-\udfff]"
)  # what escapes can say and no file, program or encoding takes


def read(text: str | bytes, *, source: str) -> Node | None:
    """Return the one document's tree; None where the text holds no document. Raises SpecError."""
    decoded = _decode(text, source)
    reader = _Reader(source=source)
    for event in _events(decoded, source):
        reader.take(event)
    return reader.root


def _decode(text: str | bytes, source: str) -> str:
    size = len(text)
    if size > SIZE_LIMIT_BYTES:
        raise _refusal(source, f"{size} bytes", f"is more than the limit of {SIZE_LIMIT_BYTES} bytes")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            rule = f"byte {error.start} is not UTF-8 text"
            raise _refusal(source, "", rule, remedy="save the file as UTF-8") from error
    return text.removeprefix("\ufeff")


def _events(text: str, source: str) -> Iterator[Event]:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 2)
    try:
        yield from yaml.parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (
            Mark(source=source, line=mark.line + 1, column=mark.column + 1) if mark else Mark(source=source)
        )
        rule = f"is not YAML: {error.problem or error.context or 'cannot be read'}"
        raise _refusal(place, "", rule, remedy=_hint(str(error.problem))) from error
    except YAMLError as error:  # a character that YAML does not allow
        first_line = str(error).strip().splitlines()[0]
        raise _refusal(source, "", f"is not YAML: {first_line}", remedy="is this a text file?") from error


def _hint(problem: str) -> str:
    if "\\t" in problem or "tab" in problem:
        return "indent with spaces"
    return "a value with `: `, `#`, `{` or `[` in it needs quotes" if "mapping values" in problem else ""


def _refusal(place: Mark | str, value: str, rule: str, *, path: str = "", remedy: str = "") -> SpecError:
    mark = Mark(source=place) if isinstance(place, str) else place
    problem = Problem(
        source=mark.source,
        line=mark.line,
        column=mark.column,
        path=path,
        value=value,
        rule=rule,
        remedy=remedy,
    )
    return SpecError([problem])


@dataclass(slots=True)
class _Open:
    """A list or mapping that is not closed yet, with the key that waits for its value."""

    node: Sequence | Mapping
    key: tuple[str, Mark] | None = None


@dataclass(slots=True)
class _Reader:
    """Builds the tree bottom-up with a stack of its own."""

    source: str
    root: Node | None = None
    stack: list[_Open] = field(default_factory=list)
    documents: int = 0
    nodes: int = 0

    def take(self, event: Event) -> None:
        mark = self._mark(event)
        match event:
            case DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    raise _refusal(mark, "", "a second document begins here", remedy="one file holds one job")
            case AliasEvent():
                raise _refusal(mark, f"*{event.anchor}", "aliases are not allowed", remedy="write it out")
            case MappingStartEvent():
                self._begin(event, Mapping(entries={}, mark=mark))
            case SequenceStartEvent():
                self._begin(event, Sequence(items=[], mark=mark))
            case MappingEndEvent() | SequenceEndEvent():
                self.stack.pop()
            case ScalarEvent():
                self._check(event, mark)
                if _NO_TEXT.search(event.value):
                    raise _refusal(
                        mark, "", "this text holds a NUL or half a character", remedy="leave it out"
                    )
                self._scalar(event, mark)
            case _:
                pass  # stream and document ends

    def _mark(self, event: Event) -> Mark:
        start: Any = event.start_mark
        return Mark(source=self.source, line=start.line + 1, column=start.column + 1)

    def _check(self, event: Any, mark: Mark) -> None:
        self.nodes += 1
        if self.nodes > NODE_LIMIT:
            raise _refusal(mark, "", f"the file holds more than {NODE_LIMIT} values")
        if event.anchor is not None:
            raise _refusal(mark, f"&{event.anchor}", "anchors are not allowed", remedy="write it out")
        # `ctag` of an untagged node is None; `!` alone only says "text".
        if event.ctag is not None and str(event.ctag) != "!":
            raise _refusal(mark, str(event.ctag), "tags are not allowed", remedy="leave the tag out")

    def _begin(self, event: CollectionStartEvent, node: Sequence | Mapping) -> None:
        self._check(event, node.mark)
        if len(self.stack) >= DEPTH_LIMIT:
            raise _refusal(node.mark, "", f"is nested deeper than {DEPTH_LIMIT} levels")
        self._place(node)
        self.stack.append(_Open(node))

    def _scalar(self, event: ScalarEvent, mark: Mark) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.node, Mapping) and top.key is None:
            self._key(top.node, event.value, mark)
            top.key = (event.value, mark)
            return
        is_plain = event.style is None or event.style == ""
        value = read_plain(event.value) if is_plain and event.ctag is None else event.value
        self._place(Scalar(value=value, text=event.value if is_plain else repr(event.value), mark=mark))

    def _key(self, mapping: Mapping, key: str, mark: Mark) -> None:
        if key in mapping.entries:
            first = mapping.entries[key].key_mark
            rule = f"is given twice, first in line {first.line}"
            raise _refusal(mark, "", rule, path=key, remedy="keep one of them")

    def _place(self, node: Node) -> None:
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        if isinstance(top.node, Sequence):
            top.node.items.append(node)
        elif top.key is None:
            raise _refusal(node.mark, "", "a key must be text, not a list or mapping")
        else:
            key, key_mark = top.key
            top.node.entries[key] = Entry(key_mark=key_mark, node=node)
            top.key = None
