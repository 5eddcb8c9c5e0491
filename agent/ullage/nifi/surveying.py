"""Looks at a NiFi where it lies, beside a NiFi that runs: nothing is locked, nothing is changed."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

from ullage.clock import Clock
from ullage.nifi.contents import ContentListing
from ullage.nifi.flowfiles import Attributes
from ullage.nifi.home import NiFiHome, queue_names
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.pins import PinPlan
from ullage.nifi.survey import NiFiSurvey, SurveyTally
from ullage.nifi.trouble import NiFiDamage

ROUNDS: Final = 20
"""In which a moment is looked for at which all that FlowFiles refer to was seen. A busy NiFi needs two or three."""

LISTED: Final = 20

NAMING: Final = frozenset({"uuid", "filename"})
"""The attributes by which a person finds a FlowFile."""


def survey_nifi(home: NiFiHome, clock: Clock, listed: int = LISTED) -> NiFiSurvey:
    """What holds the disk; `listed` of the files with the most dead bytes are told.

    The FlowFiles are those of one moment, the transaction that the survey names. Files are looked at one after the
    other, around that moment; those that a FlowFile of the moment lies in are looked at again if they were not there
    or too short. NotSurveyable.
    """
    with looked_at(home, attributes=False) as (moment, listing, is_in_use):
        used = {flowfile.file for flowfile in moment.flowfiles()}
        if is_in_use:
            for file in [file for file in listing.files if file not in used]:
                listing.settle_unused(file)
        names, damages = queue_names(home.flow)
        tally = SurveyTally(clock.now_millis(), names, listed)
        tally.add(moment.flowfiles(), listing.files)
        tally.add_unused(facts for file, facts in listing.files.items() if file not in used)
        tally.add_others(listing.archive, listing.foreign)
        damages += [*moment.damages, *listing.damages]
        return NiFiSurvey(
            millis=clock.now_millis(),
            transaction=moment.transaction,
            is_complete=not any(damage.is_serious for damage in damages),
            is_in_use=is_in_use,
            flowfiles=tally.flowfiles,
            swap_files=moment.swap_files,
            missing=tally.missing,
            missing_bytes=tally.missing_bytes,
            space=tally.space,
            queues=tally.queues(),
            ages=tally.ages,
            sizes=tally.sizes,
            files=tally.worst(),
            damages=damages,
        )


class NiFiPins(NamedTuple):
    """Who pins what at one moment of a NiFi. `names`: of queues, by their identifiers."""

    millis: int
    transaction: int
    is_in_use: bool
    is_archiving: bool
    plan: PinPlan
    names: Mapping[str, str]
    damages: list[NiFiDamage]

    @property
    def is_complete(self) -> bool:
        """All FlowFiles could be read, else files may have more of them; and all folders of contents."""
        return not any(damage.is_serious for damage in self.damages)


def pins_of_nifi(home: NiFiHome, clock: Clock) -> NiFiPins:
    """Which FlowFiles pin which files, at a moment that is found as `survey_nifi` finds it. NotSurveyable."""
    with looked_at(home, attributes=NAMING) as (moment, listing, is_in_use):
        names, damages = queue_names(home.flow)
        now = clock.now_millis()
        return NiFiPins(
            millis=now,
            transaction=moment.transaction,
            is_in_use=is_in_use,
            is_archiving=home.is_archiving,
            plan=PinPlan(moment.flowfiles(), listing.files, now, home.truncated_above),
            names=names,
            damages=[*damages, *moment.damages, *listing.damages],
        )


@contextmanager
def looked_at(home: NiFiHome, *, attributes: Attributes) -> Iterator[tuple[NiFiMoment, ContentListing, bool]]:
    """A moment, all files with those that it refers to as they were then, and whether NiFi went on meanwhile."""
    with closing(NiFiMoment(home.flowfiles, attributes=attributes)) as moment:
        moment.read()
        first = moment.transaction
        listing = ContentListing(home.containers)
        listing.read()
        moment.advance()
        _settle(moment, listing)
        yield moment, listing, moment.transaction != first


def _settle(moment: NiFiMoment, listing: ContentListing) -> None:
    """Until everything is there that the moment refers to, or nothing moves any more: then it really is missing."""
    for _ in range(ROUNDS):
        has_swaps = moment.read_swaps()
        # A file that a FlowFile left since the moment, and NiFi then removed, is refound missing only at that moment.
        missing = [file for file in _short(moment, listing) if not _is_whole(listing, file)]
        if (has_swaps and not missing) or not moment.advance():
            break
    moment.read_swaps()
    moment.tell_missing()


def _short(moment: NiFiMoment, listing: ContentListing) -> Iterator[tuple[str, int]]:
    """Files that were not seen, or not as long as some FlowFile needs them, and that length."""
    needed: dict[str, int] = {}
    for flowfile in moment.flowfiles():
        facts = listing.files.get(flowfile.file)
        end = flowfile.start + flowfile.size
        if flowfile.file and (facts is None or facts.size < end):
            needed[flowfile.file] = max(end, needed.get(flowfile.file, 0))
    yield from needed.items()


def _is_whole(listing: ContentListing, needed: tuple[str, int]) -> bool:
    file, end = needed
    return listing.look_again(file) and listing.files[file].size >= end
