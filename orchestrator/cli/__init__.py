"""The command line. Thin: it reads options, asks the service over HTTP, and draws the answer."""


def main() -> None:
    """Entry point of the console script `shardyard`."""
    from orchestrator.cli.signals import leave_at_once

    leave_at_once()  # until a command runs, which tells Ctrl-C in its own way
    from orchestrator.cli.app import build_app  # not at import: whoever imports a picture needs no commands

    build_app()()
