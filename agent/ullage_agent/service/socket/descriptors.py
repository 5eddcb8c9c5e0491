"""What decides whether a descriptor may be passed: whether its principal may read everything in that file."""

from ullage.errors import Forbidden
from ullage_agent.service.access import Authenticator, Principal, Verb


def files_for(authenticator: Authenticator, principal: Principal) -> str | None:
    """The tenant whose files alone a principal may have descriptors of; None: of all files.

    A file holds contents of everybody who wrote at its time, deleted ones too, whatever queue they stood in: only who
    may read every content of the repository may see it. With spec.isolation PerTenant it is one principal's own.
    AccessUnknown.
    """
    try:
        authenticator.authorize(principal, Verb.GET)
    except Forbidden:
        return principal.name
    return None
