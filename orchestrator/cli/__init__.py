"""The command line. Thin: it reads options, asks the service over HTTP, and draws the answer."""


def main() -> None:
    """Entry point of the console script `shardyard`."""
    import sys

    try:
        from orchestrator.cli.app import (
            build_app,
        )  # not at import: whoever imports a picture needs no commands

        build_app()()
    except KeyboardInterrupt:  # before a command runs; each command tells its own
        sys.exit(130)
