"""Every bound of the service, with its reason. What is not bounded here is bounded by the contract or the disk.

Memory at the worst is, beside what an idle process takes, about

    requests * (STEP_BYTES + PIECE_BYTES) + 2 * wide_streams * WIDE_BYTES   content on its way over HTTP
    held_bytes                                                              the same that is not begun
    flight_calls * flight_message_bytes                                     messages over Flight, as they came
    flight_controls * 10 MiB                                                the same of calls that are no streams
    socket_connections * 4 MiB                                              frames over the Unix socket
    decoded_bytes                   what becomes of those and of bodies over HTTP, answers and tables that are not sent
    flight_calls * OBJECTS_BYTES                                            attributes that become columns of these
    columns_bytes + snapshot_bytes                                          what is kept of tables
    2 * session_bytes               remote sessions, and what they were before the requests under way

which is 1.3, 0.3, 1.0, 0.2, 1.0, 1.0, 0.5, 0.3 and 0.5 GiB; before a token is known, see `flight_connections` and
`header_bytes`.
"""

from typing import Final, Self

import msgspec

KIB: Final = 1 << 10
MIB: Final = 1 << 20

STEP_BYTES: Final = MIB
"""Of an upload this much is gathered before a thread takes it to the disk: a smaller content costs one hop."""

PIECE_BYTES: Final = 256 * KIB
"""Of a download this much is read, checked and handed to the socket at a time: what a slow reader holds of memory."""

WIDE_BYTES: Final = 2 * MIB
"""The same for as many downloads as `wide_streams` allows: an eighth of the hops between threads, which cost a large
content a third of its speed.
"""


SMALL_BYTES: Final = 64 * KIB
"""An answer below this takes no room: counting it would cost as much as sending it, and a place for a request as much
as both.
"""

OBJECTS_BYTES: Final = 16 * MIB
"""What a table's stream has as objects of Python's at the worst: 64 KiB of packed attributes at a time
(`ullage/engine/batches.py`), or those of one FlowFile.
"""

DECODED_TIMES: Final = 24
"""What JSON takes as objects, as a multiple of its bytes: a mapping of short names to short texts that much, most
others a tenth of it.
"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """One service's bounds; tests make them small."""

    requests: int = 1_024
    """Requests under way, streams included: each holds at most a step and a piece."""

    requests_each: int = 768
    """The same of one principal, so that a quarter is left to the others."""

    threads: int = 32
    """Threads that call the engine. Commits that wait together share one sync, so more of them cost nothing much."""

    requests_per_peer: int = 512
    """Of these, from one address, of which nobody is known: all of them where nobody is asked for a token. So no
    client's slow uploads take every place. Half of them and no fewer, because behind a Service, a node's address or
    loopback all clients may have the same one.
    """

    held_bytes: int = 256 * MIB
    """What has come of the bodies of requests over HTTP that are not begun yet: up to 320 KiB of each."""

    held_bytes_each: int = 128 * MIB
    """The same of one principal, or of one address of which nobody is known: half is left to the others."""

    connections: int = 8_192
    """Open connections of one listener; kept below what the process may open (`RLIMIT_NOFILE`). Where there are as
    many, a new one takes the place of the one that has waited longest for a request.
    """

    connections_per_peer: int = 4_096
    """Of these, from one address: half of them, for the same reason as `requests_per_peer`."""

    handshake_seconds: float = 10.0
    """Until TLS is agreed on: no client that means it takes longer, and until then nothing is known of one."""

    header_bytes: int = 64 * KIB
    """Request line and headers."""

    header_seconds: float = 30.0
    """Until the headers are complete, from the connection or the first byte on: idle connections cost a descriptor."""

    idle_seconds: float = 60.0
    """Between two requests of a connection."""

    stall_seconds: float = 60.0
    """Without a byte of a body coming in, or going out, before the request is given up."""

    small_body_bytes: int = 16 * MIB
    """A body that is decoded as a whole: JSON or MessagePack, batches included."""

    arriving_bytes: int = 128 * MIB
    """Bodies of 64 KiB and more that are decoded as a whole and not complete yet, as they were announced: eight of the
    largest. Of more, the slowest of who has most goes.
    """

    arriving_bytes_each: int = 96 * MIB
    """The same of one principal, so that a quarter is left to the others."""

    body_values: int = 300_000
    """Names and values in one such body: a batch of 10,000 with twelve attributes each. A decoder works in one go, and
    nobody else in the process does meanwhile: some 30 ms for so many.
    """

    batch: int = 10_000
    """Contents or FlowFiles in one request: as many as one transaction takes."""

    batch_read_bytes: int = 64 * MIB
    """Content that one batch of reads returns."""

    attributes_bytes: int = 48 * KIB
    """Attributes that come in a header or in the query."""

    sessions: int = 1_000
    """Remote sessions at a time; each holds FlowFiles that nobody else sees."""

    sessions_each: int = 500
    """The same of one principal: half is left to the others."""

    session_bytes: int = 256 * MIB
    """What remote sessions hold in memory: FlowFiles, and attributes of their own. Four hundred that have changed some
    hundred kB each, or 250,000 FlowFiles that were polled.
    """

    session_bytes_each: int = 128 * MIB
    """The same of one principal: half is left to the others."""

    session_seconds_max: float = 3_600.0
    """How long a remote session may last without a heartbeat: what a vanished client withholds."""

    socket_connections: int = 256
    """Connections of the Unix socket; each has a thread, and holds at most a frame while it is answered."""

    socket_connections_each: int = 192
    """The same of one principal, so that a quarter is left to the others."""

    socket_files: int = 256
    """Descriptors that one connection's client may hold: many programs may open 1,024 in all."""

    batch_attributes: int = 500_000
    """Attributes of one batch of a DoPut, 50 for each of so many contents: each takes 8 bytes at least on its way, and
    as Python objects twenty times that.
    """

    flight_calls: int = 32
    """Streams of Arrow Flight at work, DoPut and DoGet, and tables over the Unix socket; each holds a message and what
    is made of it.
    """

    flight_controls: int = 16
    """All other calls of Flight at work, beside the streams: what they ask for is short, and streams must keep nobody
    from learning how a node is, renewing a snapshot or ending a write.
    """

    put_batch_bytes: int = 32 * MIB
    """Content and attributes of one batch of a DoPut: four times what programs should send, for those whose contents
    are large. It is received as a whole, by as many calls as there are.
    """

    flight_message_bytes: int = 33 * MIB
    """One message of a call: `put_batch_bytes` of a batch, its header, and what surrounds them. gRPC refuses a larger
    one by its length, before it is read.
    """

    stream_pause_seconds: float = 600.0
    """How long a stream over Flight, or a table over the Unix socket, may stand between two messages, in either
    direction: programs work out what they write, or work on what they read. The first message has `stall_seconds`.
    """

    decoded_bytes: int = 1 << 30
    """What bodies that are decoded as a whole and messages of Flight come to, as they are decoded and worked on: four
    of the largest at a time, some forty batches of 8 MiB. And answers of SMALL_BYTES or more and batches of tables with
    attributes, from before they are made, and messages of streams, until they are taken: twelve of the largest.
    """

    decoded_bytes_each: int = 640 * MIB
    """The same of one principal, so that the largest message of another one still has room."""

    decoded_seconds: float = 10.0
    """How long a message or an answer waits for such room: longer than a disk takes to store what has it."""

    flight_connections: int = 4_096
    """Open connections of Arrow Flight. Programs keep one for each process. gRPC closes further ones at once, so those
    without an admitted call may have no more than an eighth of what the others leave: of more the oldest ones of the
    address with most are ended. The rest is room for what comes between two looks (`service/flight/places.py`).
    """

    flight_connections_each: int = 2_048
    """The same of one principal, whose first call on one more is refused: half, so that the others, and strangers
    with an eighth of what is left, find a place while it has all that it may.
    """

    flight_call_seconds: float = 30.0
    """Until a connection's first admitted call. Clients connect when they have one, and ask an API server about a token
    within seconds.
    """

    flight_ahead_bytes: int = 128 * KIB
    """What gRPC takes of a call, or of a socket at a time, before anybody has asked for it. HTTP/2's own window is
    64 KiB, and with it each content of 100 KB waited halfway for the server's leave to send on, which cost a put a
    tenth. 1,000 strangers can make a node hold twice the memory for it.
    """

    flight_header_bytes: int = 8 * KIB
    """Headers of a call: a token of an API server takes 1 to 2 KiB."""

    flight_ping_seconds: float = 5.0
    """Between two pings of a connection; one that pings faster is closed. Ullage's own clients ping every ten seconds,
    and answering takes microseconds.
    """

    flight_idle_seconds: float = 600.0
    """How long a connection may stand between two calls: clients connect anew by themselves."""

    flight_calls_each: int = 24
    """The same of one principal, so that a quarter is left to the others."""

    flight_controls_each: int = 12
    """The same of the other calls, for the same reason."""

    turns_each: int = 1
    """Pieces of work at a time of a principal who has much to do, of those that create and of the others, while
    somebody is there who has little. With two, a call over Flight of the latter took twice as long.
    """

    shared_turns_each: int = 8
    """The same while several use the node, each with much to do, or one now and then: so many that commits still share
    syncs, and so few that a first request after a while waits for little. Whoever is alone has as many as there are
    threads.
    """

    turn_seconds: float = 2.0
    """How long a piece of work counts: one that takes longer waits for something (room on a disk, a run), or works on
    so much that those behind it should not wait for its end.
    """

    snapshot_bytes: int = 256 * MIB
    """What kept snapshots take, of all principals: 8 bytes for each FlowFile in memory, and what nobody but them keeps
    alive; columns beside them. Of a node with 100,000 FlowFiles some hundred snapshots that are over soon, or three
    beside which everything else has died. One is taken in any case where none is kept.
    """

    snapshot_bytes_each: int = 128 * MIB
    """The same of one principal: half is left to the others."""

    leases_each: int = 5_000
    """Leases of one principal: half of what spec.leases.maxCount allows all by default. Each is kept in memory, and
    looked at by whatever gives space back.
    """

    holds_each: int = 500
    """Readers for which one principal holds events: half of all that there may be."""

    writes_each: int = 500
    """Staged writes that one principal has open: half of all that there may be."""

    streams_each: int = 500
    """Streams for which FlowFiles of one principal's wait: each keeps as many as a queue does in memory."""

    queues_each: int = 5_000
    """Queues that one principal has made, of which each stands in every look at the node's state: 14 us each. A large
    flow has a thousand connections.
    """

    counters_each: int = 1_000
    """Counters that one principal has named, for the same reason; they are kept until a restart."""

    columns_bytes: int = 96 * MIB
    """Columns of FlowFiles that are kept for their next reader, of all snapshots together: eight columns of 2 million
    FlowFiles, of which only uuids and addresses differ from row to row. To read them anew takes ten times as long.
    """

    wide_streams: int = 16
    """Downloads that are read WIDE_BYTES at a time; what begins while there are so many keeps to PIECE_BYTES."""

    stop_seconds: float = 30.0
    """What a graceful stop waits for requests under way; then they are cut off, and nothing acknowledged is lost."""

    def of_probes(self, connections: int, seconds: float) -> Self:
        """Those of a listener that answers nothing but probes."""
        return msgspec.structs.replace(
            self,
            connections=connections,
            connections_per_peer=connections,
            header_seconds=seconds,
            idle_seconds=seconds,
            header_bytes=8 * KIB,
        )


DEFAULTS: Final = Limits()
"""What a service has that is told nothing else."""
