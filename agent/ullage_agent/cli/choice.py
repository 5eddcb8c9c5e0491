"""Which repository a command works on: the files of `--root` or `--config`, or the running service of `--url`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import say, size

if TYPE_CHECKING:
    from ullage import Repository
    from ullage.contract import ContentRepository, MaintenanceSettings
    from ullage.wire.upkeep import RecoveryReport


@dataclass(frozen=True)
class ChosenRepository:
    """What the options say; `is_written` tells an option on the command line from an environment variable, which it
    beats. There is no default place: nothing should ever be stored, or dropped, somewhere by accident.
    """

    root: Path | None
    config: Path | None
    url: str | None
    token_file: Path | None
    ca: Path | None
    is_written: Callable[[str], bool]

    def document(self) -> ContentRepository:
        """The description of the repository whose files are chosen. ContractError names the file and the field."""
        from ullage.contract import ContentRepository, ContentRepositorySpec, ContractError, Metadata, load_yaml

        root, config = self.root, self.config
        if root is not None and config is not None:
            is_root = self.is_written("root")
            if is_root == self.is_written("config"):
                raise click.UsageError("--root and --config (or ULLAGE_ROOT and ULLAGE_CONFIG) exclude each other")
            root, config = (root, None) if is_root else (None, config)
        if root is not None:
            return ContentRepository(metadata=Metadata(name="embedded"), spec=ContentRepositorySpec.embedded(root))
        if config is not None:
            try:
                return load_yaml(config.read_text(encoding="utf-8"))
            except (ContractError, UnicodeDecodeError) as error:
                raise ContractError(f"{config}: {error}") from error
        raise click.UsageError(
            "which repository? Say --root DIR or --config FILE, or set ULLAGE_ROOT or ULLAGE_CONFIG; for a running "
            "service many commands take --url"
        )

    @property
    def root_directory(self) -> str:
        """Where its files lie; empty for those of a service, which lie elsewhere."""
        return "" if self.is_served else self.document().spec.storage.host_path.path

    def maintenance(self) -> MaintenanceSettings:
        """Its windows; of files they are read from the configuration alone."""
        if not self.is_served:
            return self.document().spec.maintenance
        with self.opened() as repository:
            return repository.reclamation.maintenance()

    def opened(self) -> AbstractContextManager[Repository]:
        """The chosen repository: open here, with Ctrl-C deferred to safe points, or connected."""
        return self._connected() if self.is_served else opened_here(self.document())

    def unfinished_erasure(self, served: str = "") -> dict[str, str]:
        """What to say of an erasure of the chosen repository that is not finished: `unfinishedErasure`, and words.
        `served`: what a service's state says of its own, which has no values.
        """
        from ullage.embedded.erasure import unfinished_erasure

        words = served if self.is_served else unfinished_erasure(self.document().spec.storage.host_path.path)
        return {"unfinishedErasure": words} if words else {}

    def _connected(self) -> Repository:
        import ullage
        from ullage import Retries
        from ullage.contract import TOKEN_FILE

        assert self.url is not None
        token_file = self.token_file
        if token_file is None and self.url.startswith("https://") and os.path.exists(TOKEN_FILE):
            token_file = Path(TOKEN_FILE)
        token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
        retries = Retries(attempts=3, longest_seconds=1.0)  # a person waits
        return ullage.connect(self.url, token=token, ca_file=None if self.ca is None else str(self.ca), retries=retries)

    @property
    def is_served(self) -> bool:
        """Whether it is the repository of a service."""
        is_served = self.url is not None
        if is_served and (self.root is not None or self.config is not None):
            is_served = self.is_written("url")
            if is_served == (self.is_written("root") or self.is_written("config")):
                raise click.UsageError(
                    "--url excludes --root and --config (so do their variables, ULLAGE_URL and the others)"
                )
        if not is_served and (self.is_written("token_file") or self.is_written("ca")):
            raise click.UsageError("--token-file and --ca go with --url")
        if is_served and not str(self.url).startswith(("http://", "https://")):
            raise click.BadParameter(f"{self.url!r} is no URL: write http://127.0.0.1:8480/", param_hint="--url")
        return is_served


@contextmanager
def opened_here(
    config: ContentRepository | Path, on_recovery: Callable[[RecoveryReport], None] | None = None
) -> Iterator[Repository]:
    """A repository of this machine; says so when it had to be recovered. Its windows decide when it reclaims."""
    import ullage

    repository = ullage.open(config=config, maintain=False, on_recovery=on_recovery or say_recovery)
    with interrupts.deferred(), repository:
        yield repository


def say_recovery(report: RecoveryReport) -> None:
    """On stderr, once."""
    say(f"recovered after an unclean end: {recovery_summary(report)}")


def recovery_summary(report: RecoveryReport) -> str:
    """What a start had to do, in one line."""
    return (
        f"{report.transactions:,} transactions replayed, {size(report.torn_bytes)} of torn log cut off, "
        f"{report.discarded:,} unacknowledged transactions discarded"
    )
