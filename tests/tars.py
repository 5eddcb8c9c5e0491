import io
import tarfile
from pathlib import Path


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar in memory with these files, by name."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def unpack_all(archive: tarfile.TarFile, directory: str | Path) -> None:
    """All of an archive of our own. Debian 12's Python 3.11.2 has no filters yet."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
    else:
        archive.extractall(directory)
