"""`python -m ullage_operator`: settings from the environment, see settings.py."""

import asyncio
import os
import signal
import sys


def main() -> None:
    """Run until SIGTERM. Without the extra that it needs: say so, and end with 2; where another process has taken over,
    or the definitions do not fit any more, end with 1, to be started anew.
    """
    if os.getpid() == 1:  # of a container, to which the kernel takes no signal before it has a handler
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        from ullage_operator.process import operate
        from ullage_operator.settings import settings_from
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("ullage"):  # a defect of ours, no missing extra
            raise
        sys.stderr.write(
            f"ullage-operator: this needs the extra `operator`, of which the module {missing} is missing: "
            "install the package with [operator] behind its name, as the README shows.\n"
        )
        sys.exit(2)
    _log_plainly()
    if why := asyncio.run(operate(settings_from())):
        sys.exit(f"ullage-operator: {why}: this process ends, to stand by as a new one.")


def _log_plainly() -> None:
    """Exceptions without the variables of their frames: those hold keys, and the whole cluster, which takes minutes to
    print where a library for that is installed; meanwhile nothing is reconciled.
    """
    import structlog

    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, plain])


if __name__ == "__main__":
    main()
