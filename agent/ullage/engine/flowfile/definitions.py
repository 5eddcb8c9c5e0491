"""What a queue may be defined as."""

from ullage.contract import FlowFileSettings, QueuePriority
from ullage.engine.model import HANDLE_QUEUE, QueueDefinition
from ullage.errors import InvalidArgument

LIMIT_MAX = (1 << 63) - 1
"""What a definition can hold, and read again."""


def default_definition(settings: FlowFileSettings, name: str, owner: str = "") -> QueueDefinition:
    """What `spec.flowFile` says of queues of which nobody says anything; its number is still to be given."""
    defaults = settings.queue_defaults
    return QueueDefinition(
        HANDLE_QUEUE,
        name,
        str(defaults.priority),
        "priority",
        defaults.max_count,
        int(defaults.max_size),
        int(defaults.expiration),
        owner=owner,
    )


def require_possible(definition: QueueDefinition) -> None:
    """Before it is committed: a definition that no start can obey would keep the repository shut."""
    if not 0 < len(definition.name) <= 255:
        raise InvalidArgument(f"a queue's name has 1 to 255 characters, not {len(definition.name)}")
    priorities = [str(priority) for priority in QueuePriority]
    if definition.priority not in priorities:
        raise InvalidArgument(f"there is no priority {definition.priority!r}: {', '.join(priorities)}")
    for limit in (definition.count_max, definition.bytes_max, definition.expiration_millis):
        if not 0 <= limit <= LIMIT_MAX:
            raise InvalidArgument(
                f"queue {definition.name}: count, bytes and expiration are 0, no limit, to {LIMIT_MAX}, not {limit}"
            )
