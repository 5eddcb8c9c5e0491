"""A volume that is unmounted and mounted again, played by a directory that is moved aside and back."""

import shutil
from pathlib import Path


class Detached:
    """The directory of a container, on which files that are open stay open, as after a lazy unmount."""

    def __init__(self, repository: Path | str, name: str = "c2") -> None:
        self.path = Path(repository) / name
        self.aside = Path(repository).with_name(f"{Path(repository).name}-aside-{name}")

    @property
    def is_away(self) -> bool:
        return self.aside.exists()

    def take_away(self, *, leaves_mount_point: bool = True) -> None:
        self.path.rename(self.aside)
        if leaves_mount_point:
            self.path.mkdir()

    def bring_back(self, *, covers: bool = False) -> None:
        """`covers`: what was made at the mount point just when the volume went is hidden, as by a mount; else nothing
        may be there.
        """
        if covers:
            shutil.rmtree(self.path, ignore_errors=True)
        elif self.path.exists():
            self.path.rmdir()
        self.aside.rename(self.path)
