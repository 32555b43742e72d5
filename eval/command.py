"""How a command ends: with an exit code, and with one line on stderr where something went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

# Their messages say what went wrong; of any other, the type is said too.
_KNOWN = (ValueError, OSError, RuntimeError, ImportError)


def ended(name: str, run: Callable[[], int], kept: str = "run it again") -> int:
    """Run a command; returns what it returns, 2 for an error, or 130 for Ctrl-C.

    Nothing that a user typed, and nothing in a model's files, should end in a traceback.

    name: what the lines on stderr begin with.
    kept: what there is after Ctrl-C, and how to go on from it.
    """
    try:
        return run()
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; {kept}", file=sys.stderr)
        return 130
    except Exception as error:
        kind = "" if isinstance(error, _KNOWN) else f"{type(error).__name__}: "
        print(f"{name}: error: {kind}{error}", file=sys.stderr)
        return 2
