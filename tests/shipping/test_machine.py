"""Any order of public calls, kills and losses of power, shipped behind it: each point is as the repository was then."""

import os
import random
from collections.abc import Callable
from typing import Final

import msgspec
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.crash.model import State, records_of
from tests.crash.specs import SPEC
from tests.crash.test_state_machine import RepositoryMachine, choices
from tests.proof.figures import note
from tests.shipping.held import HeldShare, gone
from ullage.contract import HostPath, ReplicationMode, ReplicationSettings
from ullage.embedded.replication import parts_of
from ullage.engine.engine import Engine
from ullage.engine.shipping.sharerestoring import identity_in, restore_share, share_to_restore
from ullage.engine.shipping.shipper import Shipper
from ullage.engine.shipping.shippingparts import ShippingLimits
from ullage.errors import BucketUnavailable
from ullage.testing.crashing import CrashFiles

EXAMPLES: Final = int(os.environ.get("ULLAGE_SHIPPING_EXAMPLES", "20"))
RESTORED: Final = 3
KB: Final = 1024

SHIPPED = msgspec.structs.replace(
    SPEC, replication=ReplicationSettings(mode=ReplicationMode.ASYNC, url="s3://flows/replicas")
)
LIMITS = ShippingLimits(
    held_bytes=40 * KB,
    small_bytes=KB,
    batch_payload_bytes=2 * KB,
    batch_small_bytes=3 * KB,
    batch_content_bytes=8 * KB,
    pack_bytes=6 * KB,
    log_bytes_min=12 * KB,
)


class ShippingMachine(RepositoryMachine):
    """`points`: what was there at the end of log objects, by number; `latest`: at the last step that succeeded."""

    spec = SHIPPED

    def __init__(self) -> None:
        super().__init__()
        self.place = HeldShare()
        self.points: dict[int, State] = {}
        self.latest: State | None = None
        self.chance = random.Random(0)

    @initialize()
    def make(self) -> None:
        super().make()
        self.begin_shipping()

    def begin_shipping(self) -> None:
        self.shipper = Shipper(parts_of(self.open), self.place, "node", LIMITS)

    @rule()
    def ship(self) -> None:
        """Everything that is committed is in the share when this has succeeded."""
        try:
            if not self.shipper.has_begun:
                self.shipper.begin()
            before = self.number()
            self.shipper.step()
        except BucketUnavailable:
            self.shipper.absorb()
            return
        assert self.shipper.figures.through == self.open.log.durable
        self.latest = records_of(self.open)
        if self.number() > before:
            self.points[self.number()] = self.latest

    def number(self) -> int:
        """Of the last log object."""
        assert self.shipper._writer is not None
        return self.shipper._writer.number - 1

    @precondition(lambda self: self.place.fault is not gone)
    @rule(how=st.sampled_from(["gone", "once", "unanswered"]), choice=choices)
    def trouble(self, how: str, choice: random.Random) -> None:
        """The bucket does not answer any more, or not to one of the next requests."""
        self.place.fault = gone if how == "gone" else failing(choice.randrange(8), how)

    @rule()
    def recover(self) -> None:
        self.place.fault = lambda _kind, _key: None

    def start(self) -> None:
        super().start()
        self.begin_shipping()

    @rule()
    def reopen(self) -> None:
        """The last of it is shipped, as by a service that ends."""
        self.ship()
        if self.shipper.has_begun:
            self.shipper.close()
        super().reopen()

    def teardown(self) -> None:
        # Before the last of it is shipped: of a put that nobody was told of, what is the newest point nobody knows.
        self.place.fault = lambda _kind, _key: None
        super().teardown()
        chosen = self.chance.sample(sorted(self.points), min(RESTORED, len(self.points)))
        for point in [None, *chosen] if self.latest is not None else []:
            expected = self.latest if point is None else self.points[point]
            self.require_restored(point, expected)
        note(points=len(chosen))

    def require_restored(self, point: int | None, expected: State | None) -> None:
        asked = share_to_restore(self.place, self.shipper._share, point)
        files = CrashFiles()
        spec = msgspec.structs.replace(
            SPEC, storage=msgspec.structs.replace(SPEC.storage, host_path=HostPath(path="/again"))
        )
        restore_share(files, asked, identity_in(asked), spec, lambda _: None)
        with Engine.open(spec, files, self.clock) as again:
            assert again.check(deep=True).problems == ()
            assert records_of(again) == expected, point


def failing(after: int, how: str) -> Callable[[str, str], None]:
    """One request, the so-and-so-many-th from now on, fails: a put before it is carried out, or behind that."""
    left = [after]

    def fault(kind: str, key: str) -> None:
        if kind == ("was put" if how == "unanswered" else "put"):
            left[0] -= 1
            if left[0] == 0:
                raise BucketUnavailable(f"{key}: no answer came")

    return fault


ShippingMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


TestSharesAgainstModel = ShippingMachine.TestCase
