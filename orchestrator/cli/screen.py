"""Where output goes: results on stdout, everything else on stderr, and never both kinds on one stream.

With `--json` stdout holds JSON only, one object a line, so that `tail -n 1` and `jq` work.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.text import Text

from orchestrator.cli.exit_code import CliError

PIPED_WIDTH: Final = 200  # a pipe has no width: leave lines whole for grep


def _console(*, stderr: bool) -> Console:
    """Make a console that marks up nothing by itself: what a job prints is text, never markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False, width=width)


class Screen:
    """One command's output."""

    def __init__(self, *, as_json: bool, out: Console | None = None, err: Console | None = None) -> None:
        self.as_json = as_json
        self.out = out or _console(stderr=False)
        self.err = err or _console(stderr=True)

    @property
    def is_live(self) -> bool:
        """Whether a display that redraws itself has anybody to look at it."""
        return self.out.is_terminal and not self.as_json

    def show(self, *parts: RenderableType) -> None:
        """Print for a person; nothing with `--json`."""
        if self.as_json:
            return
        if self.out.is_terminal:
            self.out.print(*parts, sep="\n")
            return
        with self.out.capture() as captured:
            for part in parts:
                self.out.print(part, soft_wrap=isinstance(part, Text))  # a line stays a line, for grep
        lines = captured.get().split("\n")[:-1]  # tables pad their last column: a file need not have it
        self.out.file.write("".join(f"{line.rstrip()}\n" for line in lines))
        self.out.file.flush()

    def show_line(self, line: Text) -> None:
        """Print a line as it is, however long: a path in it can be copied, a terminal wraps it by itself."""
        if not self.as_json:
            self.out.print(line, soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        """Print a line for a person on stdout; nothing with `--json`."""
        self.show(Text(text, style=style))

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Show that something takes its time, while it does; nothing where nobody looks."""
        return self.out.status(Text(text, style="dim"), spinner="dots") if self.is_live else nullcontext()

    def aside(self, text: str, style: str = "dim") -> None:
        """Print a line beside the result, on stderr: progress, hints. With `--json` too."""
        self.err.print(Text(text, style=style))

    def emit(self, value: object) -> None:
        """Write one line of JSON; nothing without `--json`."""
        if self.as_json:
            self.out.file.write(json.dumps(as_data(value), ensure_ascii=False) + "\n")
            self.out.file.flush()

    def fail(self, error: CliError) -> None:
        """Tell what is wrong: for a person on stderr, for a program as one object on stdout."""
        if self.as_json:
            self.emit({"error": error.message, "problems": list(error.problems), "remedy": error.remedy})
            return
        self.err.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
        for problem in error.problems:
            self.err.print(Text(f"  {problem}"), soft_wrap=True)
        if error.remedy:
            self.err.print(Text(error.remedy, style="dim"), soft_wrap=True)


def as_data(value: object) -> Any:
    """Turn contract values, and lists and mappings of them, into what JSON can hold."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): as_data(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [as_data(item) for item in value]
    return value
