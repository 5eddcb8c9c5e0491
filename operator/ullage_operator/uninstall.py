"""`python -m ullage_operator.uninstall Refuse|Delete SECONDS [NAMESPACE...]`: what the chart runs first of all.

Only the operator takes its finalizer off: a ContentRepository that outlives it could never be deleted.
"""

import asyncio
import sys
import time
from collections.abc import Sequence

from ullage_operator.cluster.api import ApiClient, ApiConnection

POLL_SECONDS = 2.0


async def left(api: ApiClient, namespaces: Sequence[str | None], *, delete: bool) -> list[str]:
    """The repositories there are, as `namespace/name`; deletes them if told to."""
    names = []
    for namespace in namespaces:
        found, _ = await api.list("ContentRepository", namespace)
        for each in found:
            place, name = each["metadata"]["namespace"], each["metadata"]["name"]
            names.append(f"{place}/{name}")
            if delete and "deletionTimestamp" not in each["metadata"]:
                await api.delete("ContentRepository", place, name)
    return names


async def uninstall(api: ApiClient, namespaces: Sequence[str | None], *, delete: bool, seconds: float) -> str:
    """Wait until there is none; what is in the way after that, empty if nothing is."""
    end = time.monotonic() + seconds
    while names := await left(api, namespaces, delete=delete):
        if not delete:
            return f"delete these first, or set uninstall.repositories=Delete: {', '.join(names)}"
        if time.monotonic() > end:
            return f"still there after {seconds:g} s, see their status: {', '.join(names)}"
        await asyncio.sleep(POLL_SECONDS)
    return ""


async def main(policy: str, seconds: str, *namespaces: str) -> int:
    """0 if the operator may go."""
    api = ApiClient(ApiConnection.of_this_process())
    try:
        problem = await uninstall(api, namespaces or [None], delete=policy == "Delete", seconds=float(seconds))
    finally:
        await api.close()
    if problem:
        sys.stderr.write(problem + "\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
