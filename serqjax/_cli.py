"""The command line: thin functions over the public API, each importing what it needs when it runs.

Result on stdout, progress and notes on stderr. Exit codes: 0 drained, horizon, unstable; 1 deadlock or
livelock (`--allow-stuck` accepts both), capacity, error, or a program that cannot be read; 2 usage; 130
interrupted with Ctrl-C (the seeds finished so far are printed).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

EXIT_RUN = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
LONGEST_MESSAGE = 3900  # characters; a message never fills a screen with a program's text


class Usage(Exception):
    """The command was called wrongly; the text says what to write instead."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and exit. **Arguments:** `argv`: words after the command's name (default: the process's)."""
    code = call(sys.argv[1:] if argv is None else argv)
    if argv is None:
        sys.exit(code)
    return code


def call(argv: Sequence[str]) -> int:
    """The exit code of the command `argv`; every failure is one message on stderr."""
    try:
        import cyclopts

        from . import _capacity_commands as _capacity_commands
        from . import _fit_commands as _fit_commands
        from . import _study_commands as _study_commands
        from ._commands import app
    except ModuleNotFoundError:
        return complain("the command line needs the extra `cli`: pip install 'serqjax[cli]'", EXIT_RUN)
    try:
        with warnings.catch_warnings():
            show_results_warnings()
            code = app(list(argv), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Usage as error:
        return complain(str(error), EXIT_USAGE)
    except cyclopts.CycloptsError as error:
        return complain(f"{one_line(str(error)).rstrip('.')}. See `serqjax --help`.", EXIT_USAGE)
    except KeyboardInterrupt as interrupt:
        return complain(str(interrupt) or "interrupted before any seed had finished", EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader has gone (`| head`): what it wanted it has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return failed(error)


def failed(error: Exception) -> int:
    """The message and exit code of an exception that a command let through."""
    if os.environ.get("SERQJAX_TRACEBACK"):
        raise error
    from .errors import ProgramError

    if isinstance(error, ProgramError):
        return complain(str(error), EXIT_RUN)
    if isinstance(error, FileNotFoundError):
        return complain(f"{error.filename or one_line(str(error))}: no such file", EXIT_USAGE)
    if isinstance(error, OSError):
        return complain(f"{error.filename or 'file'}: {error.strerror or error}", EXIT_RUN)
    if isinstance(error, (ValueError, ImportError)):
        return complain(str(error), EXIT_USAGE if isinstance(error, ValueError) else EXIT_RUN)
    name = type(error).__name__
    return complain(f"internal error: {name}: {one_line(str(error))} (SERQJAX_TRACEBACK=1 shows where)", EXIT_RUN)


def show_results_warnings() -> None:
    """Warnings about a result are notes, each once; all others stay as they are."""
    from .errors import ResultWarning

    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ResultWarning):
            note(str(message))
        else:
            usual(message, category, *where, **more)

    warnings.showwarning = show
    warnings.filterwarnings("default", category=ResultWarning)


def complain(message: str, code: int) -> int:
    if len(message) > LONGEST_MESSAGE:
        message = message[:LONGEST_MESSAGE] + " ... (shortened)"
    print(f"serqjax: {message}", file=sys.stderr)
    return code


def one_line(text: str) -> str:
    return " ".join(text.split())


def note(message: str) -> None:
    print(f"serqjax: {message}", file=sys.stderr)
