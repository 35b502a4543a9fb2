"""The command line: which commands there are, in which order and under which heading they are told."""

from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from orchestrator.cli import (
    checkpoint_commands,
    data_commands,
    job_commands,
    plan_commands,
    record_commands,
    wish_commands,
    yard_commands,
)
from orchestrator.cli.exit_code import MEANING

HELP: Final = "Train a model from one YAML file on a Ray cluster, whatever dies on the way."
SECTIONS: Final = {
    "The yard": (
        yard_commands.demo,
        yard_commands.up,
        yard_commands.down,
        yard_commands.serve,
        yard_commands.doctor,
    ),
    "Jobs": (
        job_commands.submit,
        plan_commands.plan,
        job_commands.validate,
        job_commands.schema,
        job_commands.ls,
        job_commands.show,
        job_commands.cancel,
        wish_commands.pause,
        wish_commands.resume,
        wish_commands.retry,
    ),
    "What a job left behind": (
        record_commands.logs,
        record_commands.events,
        checkpoint_commands.checkpoints,
        checkpoint_commands.export,
    ),
}
GROUPS: Final = {"data": data_commands.data}  # a name of its own before each command; told under "Data"


class Sections(TyperGroup):
    """The root, whose help tells commands by section and ends with the exit codes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one table a section, the names in one column throughout."""
        told = {title: [function.__name__ for function in functions] for title, functions in SECTIONS.items()}
        told["Data"] = list(GROUPS)
        width = max(len(name) for names in told.values() for name in names)
        for title, names in told.items():
            rows = [(name, self.commands[name]) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), command.get_short_help_str(limit=200)) for name, command in rows]
                )

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the table of exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANING.items()])


def build_app() -> typer.Typer:
    """Put the commands together."""
    app = typer.Typer(
        cls=Sections,
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for functions in SECTIONS.values():
        for function in functions:
            app.command(context_settings={"max_content_width": 100})(function)
    for name, group in GROUPS.items():
        app.add_typer(group, name=name)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardyard {version('shardyard')}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    pass
