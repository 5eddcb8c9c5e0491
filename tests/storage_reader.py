"""A reader of a closed repository, written from docs/storage.md alone: it shares no code with the engine.

It exists to prove that the document suffices. It reads the way the document says, refuses what the document calls
damage, and knows nothing of performance, torn tails or recovery: it is for repositories that were closed, and for
backups, which `lay_out` (tests/backup_reader.py) makes closed repositories of.
"""

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c
from pyarrow import parquet

from tests.storage_claims import Damaged, claims_in, require

FORMAT = 1
SERDE = "ullage-msgpack", 1
BLOCK = 256 << 10
EVENT_TYPES = (
    *(
        "RECEIVE",
        "CREATE",
        "FETCH",
        "FORK",
        "JOIN",
        "CLONE",
        "CONTENT_MODIFIED",
        "ATTRIBUTES_MODIFIED",
        "ROUTE",
        "SEND",
    ),
    *("DROP", "EXPIRE", "REPLAY", "DOWNLOAD", "ADDINFO"),
)
FRAME_HEADER = 40
STAGED = (1 << 63) - 1


class ReadFlowFile(NamedTuple):
    """One FlowFile, handle (queue None) or tombstone as the files hold it."""

    uuid: str
    queue: str | None
    attributes: dict[str, str]
    content: bytes
    entry_millis: int
    lineage_millis: int
    queued: int
    parents: list[str]
    expires_millis: int
    deleted_millis: int


class _Frame(NamedTuple):
    id: int
    payload: bytes


class _LogFile(NamedTuple):
    sequence: int
    previous_last_id: int
    frames: list[_Frame]
    """Transactions, in order."""


class StorageReader:
    """Everything in one repository, read at construction; contents are read by `flow_files`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.identity = _json(root / "ullage.json")
        self.repository: str = self.identity["repository"]
        for name, path in self.identity["containers"].items():
            found = _json(root / path / "ullage.json")
            require((found["repository"], found["container"]) == (self.repository, name), f"container {name}")
        self.queues: dict[int, list[Any]] = {}
        self.resources: dict[int, list[Any]] = {}
        self.swaps: dict[str, list[Any]] = {}
        self._runs: dict[tuple[str, int], list[Any]] = {}
        self._answers: dict[bytes, list[Any]] = {}
        self._records: dict[bytes, list[Any]] = {}
        self._blocks: dict[tuple[int, int], bytes] = {}
        self._moves: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        self.manifest = self._read_manifest()
        self._undrained: list[tuple[str, str]] = []
        self.last_id = self._read_flowfile_directory()

    def flow_files(self) -> Iterator[ReadFlowFile]:
        """All FlowFiles with their contents verified, those in swap files included."""
        blocks = self._block_checksums()
        for record in self._records.values():
            if record[1] != STAGED:
                yield self._flow_file(record, blocks)
        for name in self.swaps:
            for record in self._read_swap(name):
                yield self._flow_file(record, blocks)

    def events(self) -> list[tuple[int, str, str]]:
        """Sequence, type and FlowFile of every provenance event, from event files and the log."""
        found = []
        for directory, name, first, count, *_, length, crc in self.manifest["files"]:
            data = (self.root / directory / name).read_bytes()
            require((len(data), crc32c(data)) == (length, crc), f"event file {name}")
            rows = parquet.read_table(io.BytesIO(data)).to_pylist()
            require([row["sequence"] for row in rows] == list(range(first, first + count)), f"rows of {name}")
            found += [(row["sequence"], row["type"], row["flow_file"]) for row in rows]
        later = enumerate(self._undrained, start=self.manifest["next_sequence"])
        return found + [(sequence, *event) for sequence, event in later]

    def answers(self) -> dict[bytes, bytes]:
        """The answers to requests by the digests of their keys, the latest of each: what runs hold, and the log."""
        found: dict[bytes, bytes] = {}
        for _, value in self._rows("answers"):
            found |= {answer[1]: answer[3] for answer in msgspec.msgpack.decode(value)}
        return found | {key: answer[2] for key, answer in self._answers.items()}

    def indexed(self, field: str) -> list[tuple[int, int]]:
        """Number and sequence of every text of a field that a shard of the index has."""
        found: list[tuple[int, int]] = []
        for path in (self.root / "provenance" / "index").glob("*.terms"):
            data = path.read_bytes()
            length, crc, magic = struct.unpack("<II8s", data[-16:])
            body = data[len(data) - 16 - length : -16]
            require((magic, crc32c(body)) == (b"ULLAGEPI", crc), f"shard {path.name}")
            run = msgspec.msgpack.decode(body)
            head = run["about"]
            require(head["repository"] == self.identity["repository"], f"repository of {path.name}")
            require(path.stem == "{:020d}-{:020d}".format(*head["span"]), f"span of {path.name}")
            at = 0
            for name, count, fences, crcs in run["sections"]:
                keys = data[at : at + 8 * count]
                blocks = [keys[start : start + 8 * 1_024] for start in range(0, len(keys), 8 * 1_024)]
                require(fences == b"".join(block[:8] for block in blocks), f"first keys of {name}")
                require(crcs == b"".join(struct.pack("<I", crc32c(block)) for block in blocks), f"blocks of {name}")
                if name == field:
                    plain = struct.unpack(f"<{count}Q", keys)
                    require(list(plain) == sorted(plain), f"order of {name}")
                    found += [(key >> 32, head["span"][0] + (key & 0xFFFF_FFFF)) for key in plain]
                at += 8 * count
            require(at == len(data) - 16 - length, f"length of {path.name}")
        return found

    def path_of(self, resource: list[Any]) -> Path:
        """Where a resource claim's file lies."""
        index, container, created_millis, archived_millis = resource[0], resource[1], resource[2], resource[7]
        section: Path = self.root / self.identity["containers"][container] / str(index % self.identity["sections"])
        return (section / "archive" if archived_millis else section) / f"{created_millis}-{index}"

    # ------------------------------------------------------------------------------------------------ snapshot and log

    def _read_flowfile_directory(self) -> int:
        directory = self.root / "flowfile"
        header, blocks = _record_file(directory / "snapshot", b"ULLAGESN", self.repository)
        for operations in blocks:
            self._apply(operations)
        last_id: int = header["last_id"]
        frames: list[_Frame] = []
        for partition, first in header["next_sequences"].items():
            frames.extend(self._chain(directory / f"partition-{partition}", partition, first))
        for frame in sorted(frames):
            if frame.id <= last_id:
                continue
            require(frame.id == last_id + 1, f"transaction {last_id + 1} is missing")
            last_id = frame.id
            if frame.payload:
                _millis, operations = msgspec.msgpack.decode(frame.payload)
                self._apply(operations)
                self._tell(frame.id, operations)
        self._require_claims()
        return last_id

    def _chain(self, directory: Path, partition: int, first: int) -> list[_Frame]:
        files = [self._log_file(path, partition) for path in sorted(directory.glob("*.wal"))]
        require(first in {file.sequence for file in files}, f"{directory}: file number {first} is missing")
        chain = sorted(file for file in files if file.frames and file.sequence >= first)
        frames: list[_Frame] = []
        for expected, file in enumerate(chain, start=first):
            require(file.sequence == expected, f"{directory}: file number {expected} is missing")
            if expected > first:
                frames = [frame for frame in frames if frame.id <= file.previous_last_id]
            frames.extend(file.frames)
        return frames

    def _log_file(self, path: Path, partition: int) -> _LogFile:
        data = path.read_bytes()
        header, offset = _file_header(data, b"ULLAGEWL", self.repository, path)
        require(header["partition"] == partition, f"{path} is of partition {header['partition']}")
        frames = []
        while frame := _frame_at(data, offset, header["salt"]):
            kind, id, payload = frame
            if kind in (b"ULLt", b"ULLv"):
                frames.append(_Frame(id, payload))
            offset += FRAME_HEADER + len(payload)
        require(not any(data[offset:]), f"{path}: bytes behind the last frame at {offset} of a closed log")
        return _LogFile(header["sequence"], header["previous_last_id"], frames)

    # ------------------------------------------------------------------------------------------------------ provenance

    def _read_manifest(self) -> dict[str, Any]:
        path = self.root / "provenance" / "manifest"
        if not path.exists():  # a repository from before there was provenance, or without it
            return {"drained": 0, "next_sequence": 1, "files": []}
        data = path.read_bytes()
        magic, length, crc = struct.unpack_from("<8sII", data)
        body = data[16:]
        require(magic == b"ULLAGEPM" and len(body) == length and crc32c(body) == crc, "manifest")
        manifest: dict[str, Any] = msgspec.msgpack.decode(body)
        require(manifest["repository"] == self.repository, "manifest of another repository")
        return manifest

    def _tell(self, id: int, operations: list[Any]) -> None:
        """Note the events of one transaction, unless they are in an event file."""
        if id <= self.manifest["drained"]:
            return
        created = [operation[1] for operation in operations if operation[0] == 1]
        for operation in operations:
            if operation[0] == 20:
                subjects = created + [record[1] for record in operation[4]]
                for run in operation[3]:
                    kind, first, count = run[:3]
                    for uuid in subjects[first : first + count]:
                        self._undrained.append((EVENT_TYPES[kind - 1], _format(uuid)))

    # ------------------------------------------------------------------------------------------------------ operations

    def _apply(self, operations: list[Any]) -> None:
        for operation in operations:
            tag, fields = operation[0], operation[1:]
            if tag in (1, 2, 3, 31):
                self._change(tag, fields)
            elif tag == 30:
                self._take_run(fields)
            elif tag in (4, 5, 25):
                kept: dict[int, Any] = {4: self.queues, 5: self.resources, 25: self._answers}
                kept[tag][fields[0]] = fields
            elif tag == 6:
                self.resources.pop(fields[0], None)
                self._moves.pop(fields[0], None)
            elif tag == 22:
                self._moves[fields[0]] = (fields[1], list(struct.iter_unpack("<QQQ", fields[2])))
            elif tag == 7:
                self._blocks[fields[0], fields[1]] = fields[2]
            elif tag in (9, 10, 11):
                self._swap(tag, fields)
            elif tag == 21:
                self._tell(fields[0], fields[2])
            else:
                require(tag in (8, 20, 23, 24, 26, 27, 28, 29), f"operation {tag} is unknown")

    def _change(self, tag: int, fields: list[Any]) -> None:
        if tag == 1:
            self._records[fields[0]] = fields
        elif tag == 2:
            self._update(fields)
        elif tag == 31:
            self._take_pack(*fields)
        else:
            for uuid in _uuids(fields[0]):
                del self._records[uuid]

    def _take_pack(self, joined: bytes, ends: bytes, rows: bytes, bits: int) -> None:
        uuids = _uuids(joined)
        require(len(ends) in (2 * len(uuids), 4 * len(uuids)), "ends of a pack")
        start, width = 0, "<H" if len(ends) == 2 * len(uuids) else "<I"
        for uuid, (end,) in zip(uuids, struct.iter_unpack(width, ends), strict=True):
            is_like_first = (int.from_bytes(uuid) ^ int.from_bytes(uuids[0])) >> 120 - bits == 0
            require(is_like_first, "what the uuids of a pack have in common")
            self._records[uuid] = [uuid, 0, *msgspec.msgpack.decode(rows[start:end])]
            start = end
        require(start == len(rows), "rows of a pack")

    def _take_run(self, listed: list[Any]) -> None:
        self._runs[listed[1], listed[0]] = listed
        if listed[1] != "handles":
            return
        gone = int.from_bytes(listed[10], "little")
        require(len(listed[10]) in (0, -(-listed[2] // 8)), "which handles of a run are gone")
        for number, (uuid, row) in enumerate(self._run(listed)):
            if not gone >> number & 1:
                require(uuid not in self._records, "a handle in two places")
                self._records[uuid] = [uuid, 0, *msgspec.msgpack.decode(row)]

    def _require_claims(self) -> None:
        """Beside each run of handles there is one of what all its rows claim, and there is no other."""
        told = {number for space, number in self._runs if space == "claims"}
        require(told == {number for space, number in self._runs if space == "handles"}, "runs of claims")
        for number in told:
            rows = self._run(self._runs["handles", number])
            claims = [msgspec.msgpack.decode(row)[0] for _, row in rows]
            wanted = [(row, claim) for row, claim in enumerate(claims) if claim is not None]
            require(sorted(claims_in(list(self._run(self._runs["claims", number])))) == wanted, f"claims {number}")

    def _update(self, update: list[Any]) -> None:
        uuid, queue, queued, content, set_attributes, remove_attributes, expires_millis, deleted_millis = update[:8]
        record = self._records[uuid] = list(self._records[uuid])
        for position, value in ((1, queue), (7, queued), (10, expires_millis), (11, deleted_millis)):
            if value is not None:
                record[position] = value
        if content is not None:
            record[2:5] = content
        attributes = msgspec.msgpack.decode(record[8], type=dict[str, str])
        for name in remove_attributes:
            attributes.pop(name, None)
        if set_attributes is not None:
            attributes.update(msgspec.msgpack.decode(set_attributes, type=dict[str, str]))
        record[8] = msgspec.msgpack.encode(attributes)

    def _swap(self, tag: int, fields: list[Any]) -> None:
        name = fields[0]
        if tag == 9:
            self.swaps[name] = fields
            for uuid in _uuids(fields[9]):
                del self._records[uuid]
            return
        del self.swaps[name]
        if tag == 10:
            self._records.update((record[0], record) for record in self._read_swap(name))

    def _read_swap(self, name: str) -> list[list[Any]]:
        _, blocks = _record_file(self.root / "swap" / name, b"ULLAGESF", self.repository)
        operations = [operation for block in blocks for operation in block]
        require(all(operation[0] == 1 for operation in operations), f"what swap file {name} holds")
        return [operation[1:] for operation in operations]

    def _block_checksums(self) -> dict[tuple[int, int], bytes]:
        """By resource claim and offset: what the log and the snapshot say themselves before any run."""
        rows = {struct.unpack(">QQ", key): crcs for key, crcs in self._rows("blocks")}
        return {(resource, offset): crcs for (resource, offset), crcs in rows.items() if crcs} | self._blocks

    def _rows(self, space: str) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each row of a key space, older ones first."""
        listed = [run for run in self._runs.values() if run[1] == space]
        for run in sorted(listed, key=lambda run: run[8]):
            yield from self._run(run)

    def _run(self, listed: list[Any]) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each row of a run that is listed, in order."""
        number, space, rows, length, crc, first, last = listed[:7]
        path = self.root / "flowfile" / "runs" / space / f"{number:020}.run"
        data = path.read_bytes()
        head_length, head_crc, magic = struct.unpack("<II8s", data[-16:])
        body = data[-16 - head_length : -16]
        require((len(data), head_crc, magic) == (length, crc, b"ULLAGERN") and crc32c(body) == crc, f"head of {path}")
        head = msgspec.msgpack.decode(body)
        require((head["repository"], head["number"], head["space"]) == (self.repository, number, space), f"{path}")
        require((head["serde"], head["serde_version"], head["format"]) == (*SERDE, FORMAT), f"version of {path}")
        words = [word for (word,) in struct.iter_unpack("<Q", head["fences"])]
        fences = [struct.pack(">QQ", high, low) for high, low in zip(words, words[len(words) // 2 :], strict=False)]
        ends = [end for (end,) in struct.iter_unpack("<Q", head["ends"])]
        counts = [count for (count,) in struct.iter_unpack("<I", head["counts"])]
        require(ends[-1] == len(data) - 16 - head_length, f"end of the blocks of {path}")
        found: list[tuple[bytes, bytes]] = []
        for start, end, count, fence in zip([0, *ends], ends, counts, fences, strict=False):
            block = list(self._run_block(space, number, data[start:end], start))
            require(len(block) == count and block[0][0] == fence, f"block at {start} of {path}")
            found += block
        keys = [key for key, _ in found]
        require(len(set(keys)) == rows and keys == sorted(keys), f"order of {path}")
        require((keys[0], keys[-1]) == (first, last), f"bounds of {path}")
        require(head["filter"] == b"".join(key[:-3:-1] for key in keys), f"filter of {path}")
        yield from found

    def _run_block(self, space: str, number: int, data: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
        magic, rows, length, crc = struct.unpack_from("<4sIII", data)
        columns = data[16:]
        covered = (self.repository + space).encode() + struct.pack("<QQ", number, offset) + data[:12] + columns
        require((magic, len(columns), crc32c(covered)) == (b"ULLb", length, crc), f"block at {offset} of run {number}")
        high, low = struct.unpack_from(f"<{rows}Q", columns), struct.unpack_from(f"<{rows}Q", columns, 8 * rows)
        ends = struct.unpack_from(f"<{rows}I", columns, 16 * rows)
        values = columns[20 * rows :]
        require(ends[-1] == len(values), f"values of the block at {offset} of run {number}")
        for at in range(rows):
            yield struct.pack(">QQ", high[at], low[at]), values[ends[at - 1] if at else 0 : ends[at]]

    # --------------------------------------------------------------------------------------------------------- content

    def _flow_file(self, record: list[Any], blocks: dict[tuple[int, int], bytes]) -> ReadFlowFile:
        uuid = _format(record[0])
        stored = msgspec.msgpack.decode(record[8], type=dict[str, str])
        return ReadFlowFile(
            uuid=uuid,
            queue=self.queues[record[1]][1] if record[1] else None,
            attributes={"uuid": uuid, "filename": uuid, "path": "./"} | stored,
            content=self._content(record, blocks),
            entry_millis=record[5],
            lineage_millis=record[6],
            queued=record[7],
            parents=[_format(parent) for parent in _uuids(record[9])],
            expires_millis=record[10],
            deleted_millis=record[11],
        )

    def _place(self, resource: int, offset: int, length: int) -> tuple[int, int]:
        """The resource claim in whose file a base claim lies, and its offset there."""
        if resource not in self._moves:
            return resource, offset
        output, moves = self._moves[resource]
        for start, count, target in moves:
            if start <= offset and offset + length <= start + count:
                return output, target + offset - start
        raise Damaged(f"claim at {offset} of resource claim {resource} was moved nowhere")

    def _content(self, record: list[Any], blocks: dict[tuple[int, int], bytes]) -> bytes:
        claim, start, size = record[2:5]
        if claim is None or size == 0:
            return b""
        resource, offset, length, crc = claim
        index, at = self._place(resource, offset, length)
        with self.path_of(self.resources[index]).open("rb") as file:
            file.seek(at)
            data = file.read(length)
        require(len(data) == length and crc32c(data) == crc, f"claim at {offset} of resource claim {resource}")
        if length > BLOCK:
            crcs = struct.iter_unpack("<I", blocks[resource, offset])
            for number, (block_crc,) in enumerate(crcs):
                block = data[number * BLOCK : (number + 1) * BLOCK]
                require(bool(block) and crc32c(block) == block_crc, f"block {number} of the claim at {offset}")
        return data[start : start + size]


def _frame_at(data: bytes, at: int, salt: bytes) -> tuple[bytes, int, bytes] | None:
    """Kind, id and payload of the frame at `at`; None where no whole, valid frame begins."""
    head = data[at : at + FRAME_HEADER]
    if len(head) < FRAME_HEADER or head[:4] not in (b"ULLt", b"ULLv", b"ULLc"):
        return None
    kind, length, id, _durable, _synced, payload_crc, header_crc = struct.unpack("<4sIQQQII", head)
    payload = data[at + FRAME_HEADER : at + FRAME_HEADER + length]
    mark = int.from_bytes(salt, "little") ^ at & 0xFFFFFFFF
    if crc32c(head[:-4]) ^ mark != header_crc or len(payload) != length or crc32c(payload) != payload_crc:
        return None
    return kind, id, payload


def _file_header(data: bytes, magic: bytes, repository: str, path: Path) -> tuple[dict[str, Any], int]:
    found, length, crc = struct.unpack_from("<8sII", data)
    body = data[16 : 16 + length]
    require(found == magic and len(body) == length and crc32c(body) == crc, f"{path}: file header")
    header: dict[str, Any] = msgspec.msgpack.decode(body, strict=False)
    require(header["format"] == FORMAT, f"{path}: format {header['format']}")
    require((header["serde"], header["serde_version"]) == SERDE, f"{path}: SerDe {header['serde']}")
    require(header["repository"] == repository, f"{path}: of repository {header['repository']}")
    return header, 16 + length


def _record_file(path: Path, magic: bytes, repository: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """A snapshot's or swap file's header and its blocks of operations."""
    data = path.read_bytes()
    header, offset = _file_header(data, magic, repository, path)
    begin = data[:offset]
    blocks = []
    records = heads_crc = 0
    while True:
        head = data[offset : offset + 12]
        require(len(head) == 12, f"{path}: ends at {offset}")
        length, count, crc = struct.unpack("<III", head)
        if length == 0:
            break
        payload = data[offset + 12 : offset + 12 + length]
        require(len(payload) == length and crc32c(payload) == crc, f"{path}: block at {offset}")
        blocks.append(msgspec.msgpack.decode(payload))
        require(len(blocks[-1]) == count, f"{path}: block at {offset} holds {len(blocks[-1])} records")
        heads_crc = crc32c(head, heads_crc)
        records += count
        offset += 12 + length
    footer = data[offset : offset + 20]
    require(len(footer) == 20, f"{path}: footer of {len(footer)} bytes")
    require(data[offset + 20 :] == begin + struct.pack("<I", len(begin)), f"{path}: copy of the header")
    require(struct.unpack("<IQII", footer) == (0, records, heads_crc, crc32c(footer[:16])), f"{path}: footer")
    return header, blocks


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    require(found["format"] == FORMAT, f"{path}: format {found['format']}")
    return found


def _uuids(joined: bytes) -> list[bytes]:
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]


def _format(uuid: bytes) -> str:
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
