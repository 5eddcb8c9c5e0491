"""A subject: values of attributes, all of which a record or an event has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import msgspec

from ullage.engine.arrow import pa
from ullage.engine.model import CORE, FlowFileRecord, SetAside, pack_attributes, parse_uuid, unpack_attributes
from ullage.engine.provenance.filters import rows_with_attribute
from ullage.engine.registers import SubjectDigest

KNOWN_MAX: Final = 10_000
"""Values whose digests are remembered: many records have the same."""

_FIXSTR_MAX: Final = 31

_HEADS: Final = ((1, 0xD9, 0xC4), (2, 0xDA, 0xC5), (4, 0xDB, 0xC6))
"""How many bytes the length of a msgpack text or binary has, and the bytes that say so of each."""


class Subject:
    """Looks at records and events, and remembers nothing."""

    def __init__(self, where: Mapping[str, str]) -> None:
        self._where = dict(where)
        self._values = [value.encode() for name, value in where.items() if name not in CORE]
        """A record of the subject has all of these among its bytes. One that was given no `filename` has that of its
        uuid: so core attributes need not stand there.
        """
        self._packed = [value.encode() for name, value in where.items() if value and name != "uuid"]
        """What may stand among the bytes of a record: also core attributes, once they were set."""
        self._is_core = any(name in CORE for name in where)
        self._aside = [_aside_pattern(name, value) for name, value in where.items()]

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
        if not any(value in packed for value in self._packed):
            return False
        # Whatever was replaced may be the value: that it also stands in another attribute says nothing of this one.
        return pack_attributes(unpack_attributes(packed)) != packed

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
        """Whether a record that can't be used may be the subject's: it holds all the attributes with their values, as
        they are packed, or FlowFiles of the subject went with it. A value alone may be anybody's, by chance.
        """
        if any(map(self.has, aside.flow_files)):
            return True
        return bool(self._aside) and all(pattern.search(aside.data) for pattern in self._aside)

    def _is_in(self, attributes: Mapping[str, str]) -> bool:
        return all(attributes.get(name) == value for name, value in self._where.items())


def _aside_pattern(name: str, value: str) -> re.Pattern[bytes]:
    """What a record that can't be decoded has among its bytes if it has this attribute."""
    found = _packed_text(name.encode()) + _packed_text(value.encode())
    if name in ("uuid", "filename"):  # the uuid is the record's own, and so is the filename unless it was set
        with suppress(ValueError):
            found += b"|" + re.escape(parse_uuid(value))
    return re.compile(found, re.DOTALL)


def _packed_text(text: bytes) -> bytes:
    """A text as msgpack may pack it, also with a longer head than it needs: who let the record in did not look."""
    size = len(text)
    heads = [bytes([0xA0 | size])] if size <= _FIXSTR_MAX else []
    for bytes_of_size, *kinds in _HEADS:
        if size < 1 << (8 * bytes_of_size):
            heads += [bytes([kind]) + size.to_bytes(bytes_of_size, "big") for kind in kinds]
    return b"(?:" + b"|".join(map(re.escape, heads)) + b")" + re.escape(text)


def digest_of(where: Mapping[str, str], key: bytes) -> bytes:
    """A subject without its values: 32 bytes from which nobody learns them who has not the key."""
    return blake2b(
        msgspec.json.encode(sorted(where.items())), key=key, digest_size=32, person=b"ullage-erasure"
    ).digest()


class DigestedSubjects(Subject):
    """Subjects of which only digests are known: what has attributes of their names is digested, and compared. `found`
    is who of them was met in what was looked at.

    Records that can't be used can't be looked at so, but for FlowFiles that went with them.
    """

    def __init__(self, digests: Iterable[SubjectDigest]) -> None:
        super().__init__({})
        self._digests: dict[tuple[str, ...], dict[bytes, set[bytes]]] = {}
        for each in digests:
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
        met = [self._is_meant(tuple((name, attributes[name]) for name in names)) for names in there]
        return any(met)

    def _is_meant(self, pairs: tuple[tuple[str, str], ...]) -> bool:
        found = self._known.get(pairs)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            where, by_key = dict(pairs), self._digests[tuple(name for name, _ in pairs)]
            found = self._known[pairs] = any(digest_of(where, key) in digests for key, digests in by_key.items())
            if found:
                self.found[pairs] = None
        return found
