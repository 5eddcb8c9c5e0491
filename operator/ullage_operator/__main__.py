"""`python -m ullage_operator`: settings from the environment, see settings.py."""

import asyncio
import sys


def main() -> None:
    """Run until SIGTERM. Without the extra that it needs: say so, and end with 2."""
    try:
        import kopf

        from ullage_operator import handlers
        from ullage_operator.objects import MANAGER
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
    settings = settings_from()
    handlers.look_again_every(settings.resync_seconds)  # importing the module has registered the others
    memo = kopf.Memo(settings=settings)
    endpoint = f"http://0.0.0.0:{settings.health_port}/healthz" if settings.health_port else None
    asyncio.run(
        kopf.operator(
            memo=memo,
            # Else kopf asks for the user's name, and a container's user has none. Its type is not exported.
            identity=MANAGER,  # type: ignore[arg-type]
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            liveness_endpoint=endpoint,
        )
    )


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
