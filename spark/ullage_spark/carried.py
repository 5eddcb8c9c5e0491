"""Objects on their way to executors that say what is missing there.

What a task runs is pickled, and refers to this package by name. On an executor without it that ends in a bare
`ModuleNotFoundError` out of the depth of a worker. So each object is wrapped in a call of `opened`, which itself is
pickled by value and can explain.
"""

import pickle
import sys
from typing import Any

from pyspark import cloudpickle


def opened(pickled: bytes) -> Any:
    """Runs where nothing of ours may be there: it imports what it needs itself."""
    import importlib  # noqa: PLC0415
    import pickle  # noqa: PLC0415
    import socket  # noqa: PLC0415

    try:
        for name in ("pyspark_ullage", "ullage.client.flight", "ullage_spark.reader"):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the Python package ullage[spark] is not complete on this executor ({socket.gethostname()}): no module "
            f"{error.name}. Install it in the executors' image, or send an environment with --archives: see "
            "docs/spark.md, Packaging"
        ) from error
    kind, state = pickle.loads(pickled)  # noqa: S301 - Spark pickled it
    found = kind.__new__(kind)
    found.__dict__.update(state)
    return found


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def carried(thing: Any) -> tuple[Any, ...]:
    """For `__reduce__`."""
    return opened, (pickle.dumps((type(thing), thing.__dict__)),)


class Carried:
    """Base of what is sent to executors."""

    def __reduce__(self) -> tuple[Any, ...]:
        return carried(self)
