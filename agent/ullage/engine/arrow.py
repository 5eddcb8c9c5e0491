"""pyarrow, imported when it is first used: opening a repository does not wait for it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["pa", "pc", "pq"]


class _OnFirstUse:
    """A module that is imported by whoever first asks for something in it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._module), name)
        setattr(self, name, found)  # found here the next time, at the cost of any attribute
        return found


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa, pc, pq = map(_OnFirstUse, ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))
