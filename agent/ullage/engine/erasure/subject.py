"""A subject: values of attributes, all of which a record or an event has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from ullage.engine.arrow import pa
from ullage.engine.model import CORE, FlowFileRecord, SetAside, pack_attributes, unpack_attributes
from ullage.engine.provenance.filters import rows_with_attribute
from ullage.engine.registers import RegisteredSubject

KNOWN_MAX: Final = 10_000
"""Values whose digests are remembered: many records have the same."""


class Subject:
    """Looks at records and events, and remembers nothing."""

    def __init__(self, where: Mapping[str, str]) -> None:
        self._where = dict(where)
        self._values = [value.encode() for name, value in where.items() if name not in CORE]
        self._is_core = any(name in CORE for name in where)

    def rows(self, table: pa.Table) -> Sequence[int]:
        """The rows of events with one of the values before or after them, or all where more has to be asked."""
        if self._is_core or not self._where:
            return range(table.num_rows)
        found = set().union(*(rows_with_attribute(table, name, value) for name, value in self._where.items()))
        return sorted(found)

    def has(self, record: FlowFileRecord) -> bool:
        """Whether a FlowFile or handle is the subject's. Of most the packed bytes tell that they are not."""
        packed = record.attributes
        if not all(value in packed for value in self._values):
            return False
        found = record.attribute_map() if self._is_core else unpack_attributes(packed)
        return self._is_in(found)

    def lingers_in(self, record: FlowFileRecord) -> bool:
        """Whether packed attributes of somebody else have a value of the subject, that an update has replaced since."""
        packed = record.attributes
        found = [value for value in self._values if value in packed]
        if not found:
            return False
        clean = pack_attributes(unpack_attributes(packed))
        return any(value not in clean for value in found)

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


def digest_of(where: Mapping[str, str], key: bytes) -> bytes:
    """A subject without its values: 32 bytes from which nobody learns them who has not the key."""
    return blake2b(
        msgspec.json.encode(sorted(where.items())), key=key, digest_size=32, person=b"ullage-erasure"
    ).digest()


class DigestedSubject(Subject):
    """A subject of which only a digest is known: what has attributes of these names is digested, and compared.

    Records that can't be used can't be looked at so, but for FlowFiles that went with them.
    """

    def __init__(self, names: Collection[str], digest: bytes, key: bytes) -> None:
        super().__init__({})
        self._names, self._digest, self._key = sorted(names), digest, key
        self._packed_names = [name.encode() for name in names if name not in CORE]
        self._is_core = any(name in CORE for name in names)
        self._known: dict[tuple[str, ...], bool] = {}

    def has(self, record: FlowFileRecord) -> bool:
        packed = record.attributes
        if not all(name in packed for name in self._packed_names):
            return False
        return self._is_in(record.attribute_map() if self._is_core else unpack_attributes(packed))

    def has_aside(self, aside: SetAside) -> bool:
        return any(map(self.has, aside.flow_files))

    def _is_in(self, attributes: Mapping[str, str]) -> bool:
        if not all(name in attributes for name in self._names):
            return False
        values = tuple(attributes[name] for name in self._names)
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            where = dict(zip(self._names, values, strict=True))
            found = self._known[values] = digest_of(where, self._key) == self._digest
        return found


class RegisteredSubjects(Subject):
    """Subjects of which a register has only digests: `found` is who of them was met in what was looked at."""

    def __init__(self, registered: Iterable[RegisteredSubject]) -> None:
        super().__init__({})
        self._digests: dict[tuple[str, ...], dict[bytes, set[bytes]]] = {}
        for each in registered:
            self._digests.setdefault(each.attributes, {}).setdefault(each.key, set()).add(each.digest)
        self._packed_names = [[name.encode() for name in names if name not in CORE] for names in self._digests]
        self._is_core = any(name in CORE for names in self._digests for name in names)
        self._known: dict[tuple[tuple[str, str], ...], bool] = {}
        self.found: dict[tuple[tuple[str, str], ...], None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nobody is meant."""
        return not self._digests

    def has(self, record: FlowFileRecord) -> bool:
        packed = record.attributes
        if not any(all(name in packed for name in names) for names in self._packed_names):
            return False
        return self._is_in(record.attribute_map() if self._is_core else unpack_attributes(packed))

    def has_aside(self, aside: SetAside) -> bool:
        return any(map(self.has, aside.flow_files))

    def _is_in(self, attributes: Mapping[str, str]) -> bool:
        there = [names for names in self._digests if all(name in attributes for name in names)]
        met = [self._is_registered(tuple((name, attributes[name]) for name in names)) for names in there]
        return any(met)

    def _is_registered(self, pairs: tuple[tuple[str, str], ...]) -> bool:
        found = self._known.get(pairs)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            where, by_key = dict(pairs), self._digests[tuple(name for name, _ in pairs)]
            found = self._known[pairs] = any(digest_of(where, key) in digests for key, digests in by_key.items())
            if found:
                self.found[pairs] = None
        return found
