# PYTHON_ARGCOMPLETE_OK
"""`python -m harness`."""

import sys

if __name__ == "__main__":
    try:
        from harness.cli.main import main

        sys.exit(main())
    # Ctrl-C may come while modules are imported, or before the run handles signals.
    except KeyboardInterrupt:
        print("harness: stopped by Ctrl-C", file=sys.stderr)  # noqa: T201 - `say` may not be imported yet
        sys.exit(130)
