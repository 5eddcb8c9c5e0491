"""A subject: values of attributes, all of which a record or an event has."""

from collections.abc import Mapping

from ullage.engine.model import CORE, FlowFileRecord, SetAside, unpack_attributes


class Subject:
    """Looks at records and events, and remembers nothing."""

    def __init__(self, where: Mapping[str, str]) -> None:
        self._where = dict(where)
        self._values = [value.encode() for name, value in where.items() if name not in CORE]
        self._is_core = any(name in CORE for name in where)

    def has(self, record: FlowFileRecord) -> bool:
        """Whether a FlowFile or handle is the subject's. Of most the packed bytes tell that they are not."""
        packed = record.attributes
        if not all(value in packed for value in self._values):
            return False
        found = record.attribute_map() if self._is_core else unpack_attributes(packed)
        return self._is_in(found)

    def has_event(self, flow_file: str, attributes: Mapping[str, str]) -> bool:
        """Whether these attributes of an event's FlowFile are the subject's."""
        if not attributes and not self._is_core:
            return False
        core = {"uuid": flow_file, "filename": flow_file, "path": "./"} if self._is_core else {}
        return self._is_in({**core, **attributes})

    def shares(self, attributes: Mapping[str, str]) -> bool:
        """Whether one of the values that make the subject is among these."""
        return any(attributes.get(name) == value for name, value in self._where.items())

    def has_aside(self, aside: SetAside) -> bool:
        """Whether a record that can't be used may be the subject's: it holds all the values somewhere, or names it."""
        if any(map(self.has, aside.flow_files)):
            return True
        return bool(self._values) and all(value in aside.data for value in self._values)

    def _is_in(self, attributes: Mapping[str, str]) -> bool:
        return all(attributes.get(name) == value for name, value in self._where.items())
