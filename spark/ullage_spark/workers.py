"""Spark's Python workers: processes that do one task after the other."""

import gc
from typing import Final

from pyspark import TaskContext

_BEGUN: Final[list[int]] = [-1, 0]
"""The task that this process does, and how many it has begun."""


def begin_task() -> None:
    """Spare this task the look for garbage among what all tasks of the process use. To be said once a task or more
    often; nothing happens outside of tasks.

    PySpark looks at every object of a worker after each task: with the modules that are imported here and in NumPy,
    pandas and Arrow 100,000 of them, which took 45 ms, as long as reading 25,000 contents of 1 KB. What is there when
    the second task begins was looked at just now, and stays for the life of the process; the first one cannot tell what
    will be imported. What later tasks import is found at the fourth, the eighth and so on: what a task itself has made
    stays then, too, so that may happen a few times only. To ask the collector what is spared would be to count it.
    """
    context = TaskContext.get()
    task = None if context is None else context.taskAttemptId()
    last, count = _BEGUN
    if task is None or task == last:
        return
    count += 1
    _BEGUN[:] = task, count
    if count > 1 and count & (count - 1) == 0:
        gc.freeze()
