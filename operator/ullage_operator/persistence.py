"""What kopf keeps between two events of an object: as little as can be of it on the object itself, which people keep in
git, compare and read.
"""

import kopf


class HandledSpecs(kopf.DiffBaseStorage):
    """What each object said when it was handled last, for as long as this process lives. Kopf would write the whole of
    it beside the object's own spec, with a request for each change.

    An object whose status says that a process has looked at it counts as handled when it is first seen: kopf resumes it
    then, and creates the others. A pass looks at the whole object in either case.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handled: dict[str, kopf.BodyEssence] = {}

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """None: this is new."""
        uid = body.metadata.uid
        if uid not in self._handled and "observedGeneration" in body.status:
            self._handled[uid] = self.build(body=body)
        return self._handled.get(uid)

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """It was handled."""
        self._handled[body.metadata.uid] = essence

    def forget(self, uid: str) -> None:
        """It is gone."""
        self._handled.pop(uid, None)


class UnfinishedProgress(kopf.AnnotationsProgressStorage):
    """What a handler has come to, in an annotation while it will be called again: its change is what wakes kopf. The
    parent also marks objects whose handlers have ended at the first call, for good.
    """

    def store(self, *, key: kopf.HandlerId, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        """Unless it has ended well: then nobody will ask."""
        if not record.get("success"):
            super().store(key=key, record=record, body=body, patch=patch)
