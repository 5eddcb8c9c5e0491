"""What the ledger knows of one resource claim: its physical state, and what in it is alive."""

from dataclasses import dataclass, field

from ullage.engine.model import Action, ContentClaim, Relocation, ResourceClaim, SwapShare


@dataclass(slots=True)
class Pin:
    """How often a base claim is pinned."""

    claim: ContentClaim
    count: int = 0


@dataclass(slots=True, eq=False)
class ResourceEntry:
    """One resource claim's counts, kept for base claims (a slice counts for the run it is a slice of).

    `live` maps the offset of each base claim with a resident claimant to the claim; `shared` holds the claimant
    count where it is more than one. `swapped` is what swap files hold, by file name: totals and ends only, so that
    a swapped FlowFile costs nothing but its share. `pins` maps offsets to [pins, claim].

    `relocation` says where the bytes lie once a rewrite has moved them, up to `relocated_end` of that file; `sources`
    of an output are the resource claims whose bytes lie in it.

    Everything here is read and changed under the ledger's lock.
    """

    claim: ResourceClaim
    live: dict[int, ContentClaim] = field(default_factory=dict)
    shared: dict[int, int] | None = None
    swapped: dict[str, SwapShare] | None = None
    pins: dict[int, Pin] | None = None
    live_bytes: int = 0
    relocation: Relocation | None = None
    relocated_end: int = 0
    sources: set[int] | None = None
    last_death: int = 0
    last_death_millis: int = 0

    def __post_init__(self) -> None:
        self.last_death, self.last_death_millis = self.claim.last_death, self.claim.last_death_millis

    def add(self, claim: ContentClaim) -> None:
        """One more resident claimant of a base claim."""
        offset = claim.offset
        if offset not in self.live:
            self.live[offset] = claim
            self.live_bytes += claim.length
        elif self.shared is None:
            self.shared = {offset: 2}
        else:
            self.shared[offset] = self.shared.get(offset, 1) + 1

    def remove(self, claim: ContentClaim) -> bool:
        """One resident claimant less; whether it was the last one."""
        offset = claim.offset
        count = 1 if self.shared is None else self.shared.get(offset, 1)
        if count > 2:
            assert self.shared is not None
            self.shared[offset] = count - 1
        elif count == 2:
            assert self.shared is not None
            del self.shared[offset]
            if not self.shared:
                self.shared = None
        else:
            del self.live[offset]
            self.live_bytes -= claim.length
            return True
        return False

    def pin(self, claim: ContentClaim) -> None:
        """Keep a base claim's bytes whatever happens to its claimants."""
        if self.pins is None:
            self.pins = {}
        self.pins.setdefault(claim.offset, Pin(claim)).count += 1

    def unpin(self, claim: ContentClaim) -> None:
        assert self.pins is not None, f"claim at {claim.offset} of resource claim {claim.resource} is not pinned"
        held = self.pins[claim.offset]
        held.count -= 1
        if held.count == 0:
            del self.pins[claim.offset]
            if not self.pins:
                self.pins = None

    @property
    def claimants(self) -> int:
        """FlowFiles, handles and tombstones that point here, swapped ones included."""
        count = len(self.live)
        if self.shared is not None:
            count += sum(self.shared.values()) - len(self.shared)
        if self.swapped is not None:
            count += sum(share.claimants for share in self.swapped.values())
        return count

    @property
    def bytes_live(self) -> int:
        """Bytes of live base claims. One that resident and swapped FlowFiles share counts once for each side."""
        if self.swapped is None:
            return self.live_bytes
        return self.live_bytes + sum(share.live_bytes for share in self.swapped.values())

    @property
    def is_free(self) -> bool:
        """No claimant and no pin: nothing needs a byte of the file, once it is sealed."""
        return not self.live and self.swapped is None and self.pins is None

    @property
    def is_overrun(self) -> bool:
        """Whether claims reach beyond the end of the file, which never shrinks below what is in use."""
        claim = self.claim
        return claim.sealed and self.relocation is None and self.end_in_use() > claim.length

    @property
    def has_intent(self) -> bool:
        return self.claim.intent != Action.NONE

    def end_in_use(self) -> int:
        """The end of the last live or pinned base claim: what truncation may cut to. Exact, also with swap files."""
        ends = [claim.end for claim in self.live.values()]
        if self.swapped is not None:
            ends.extend(share.end for share in self.swapped.values())
        if self.pins is not None:
            ends.extend(held.claim.end for held in self.pins.values())
        return max(ends, default=0)

    def uses(self, claim: ContentClaim) -> bool:
        """Whether a base claim is known to be live or pinned."""
        return claim.offset in self.live or (self.pins is not None and claim.offset in self.pins)
