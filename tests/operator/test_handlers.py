"""Kopf's side of the operator, without kopf."""

import kopf

from ullage_operator.handlers import DEAF_SECONDS, Hearing, configure
from ullage_operator.objects import Object
from ullage_operator.persistence import HandledSpecs


def repository(uid: str, version: int) -> Object:
    return {"metadata": {"namespace": "data", "name": uid, "uid": uid, "resourceVersion": str(version)}}


def test_who_hears_nothing_for_long_says_so() -> None:
    """The kubelet ends the process then. One that is behind for a moment, or hears of a newer version, is well."""
    now = 0.0
    hearing = Hearing(lambda: now)
    one, other = repository("a", 3), repository("b", 7)
    for found in (one, other):
        hearing.told(found["metadata"])
    assert hearing.problem([one, other]) == ""

    newer = repository("b", 9)
    assert hearing.problem([one, newer]) == ""
    now = DEAF_SECONDS
    assert hearing.problem([one, newer]) == ""
    now += 1
    assert "data/b" in hearing.problem([one, newer])

    hearing.told(newer["metadata"])
    assert hearing.problem([one, newer]) == ""
    # Since then it has been heard of: the time begins anew.
    assert hearing.problem([one, repository("b", 10)]) == ""


def test_one_that_was_never_heard_of_counts_from_when_it_was_seen() -> None:
    """A new repository, of which no watch of kopf's says anything."""
    now = 0.0
    hearing = Hearing(lambda: now)
    assert hearing.problem([repository("new", 1)]) == ""
    now = DEAF_SECONDS + 1
    assert "data/new" in hearing.problem([repository("new", 1)])


def test_no_timer_of_kopf_s_ends_a_watch() -> None:
    """It cancels whatever its task does at that moment, the handling of an event as well, and nobody hears any more."""
    settings = kopf.OperatorSettings()

    configure(settings, HandledSpecs())

    watching = settings.watching
    assert watching.client_timeout is not None
    assert watching.inactivity_timeout is not None
    assert watching.inactivity_timeout > watching.client_timeout
