"""Spark's Python workers: processes that do one task after the other."""

import gc
from typing import Final

from pyspark import TaskContext

_FIRST: Final[list[int]] = []
"""The task that this process began with."""


def begin_task() -> None:
    """Spare this task the look for garbage among what all tasks of the process use. To be said once a task or more
    often; nothing happens outside of tasks.

    PySpark looks at every object of a worker after each task: with the modules that are imported here and in NumPy,
    pandas and Arrow 100,000 of them, which took 45 ms, as long as reading 25,000 contents of 1 KB. What is there when
    the second task begins was looked at just now, and stays for the life of the process; the first one cannot tell what
    will be imported.
    """
    context = TaskContext.get()
    task = None if context is None else context.taskAttemptId()
    if task is None or task in _FIRST:
        return
    if not _FIRST:
        _FIRST.append(task)
    elif gc.get_freeze_count() == 0:
        gc.freeze()
