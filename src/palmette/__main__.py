"""`palmette` and `python -m palmette`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line on `sys.argv`, and leave with its exit code."""
    try:
        from .cli.app import app

        app(prog_name="palmette")
    except KeyboardInterrupt:  # outside a command, where its own report does not reach
        sys.exit(130)


if __name__ == "__main__":
    main()
