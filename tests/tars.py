import io
import tarfile


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar in memory with these files, by name."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
