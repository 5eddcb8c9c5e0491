"""What goes into a repository beside the documents of the wire, which it returns."""

from collections.abc import Iterable, Mapping

from ullage.streams import AnyContent as AnyContent
from ullage.wire.queues import FlowFile

AnyFlowFile = FlowFile | str
"""A FlowFile, or its id: the session knows what it has become."""

Subjects = AnyFlowFile | Iterable[AnyFlowFile]
"""One FlowFile, or several."""

Attributes = Mapping[str, str]
"""Names and values of a FlowFile or handle. `uuid` is the record's own and cannot be set."""

CheckedAttributes = dict[str, str] | list[dict[str, str]]
"""Those of a batch, as `checked_batch` gives them: for all of it, or of each."""
