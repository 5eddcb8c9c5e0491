"""Spark's Python workers: processes that do one task after the other, or plan one query after the other."""

import gc
import sys
from typing import Final

from pyspark import TaskContext

_BEGUN: Final[list[int]] = [-1, 0]
"""The task that this process does, and how much work it has begun."""

_DAEMON: Final = "pyspark.daemon"
"""The program of which workers are forks."""


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
    if task is None or task == _BEGUN[0]:
        return
    _BEGUN[0] = task
    _begin()


def begin_planning() -> None:
    """The same where a query is planned, which Spark does in two or three processes of their own: each of them looked
    for garbage while the query's first tasks ran. Nothing happens in a program that is no worker of Spark's.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        _begin()


def _begin() -> None:
    _BEGUN[1] += 1
    count = _BEGUN[1]
    if count > 1 and count & (count - 1) == 0:
        gc.freeze()
