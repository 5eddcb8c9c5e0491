"""What all kinds of the group have in common, and what all settings are made of."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

GROUP: Final = "ullage.dev"
API_VERSION: Final = "ullage.dev/v1alpha1"

Percentage = Annotated[int, Meta(ge=0, le=100)]
DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"


Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", max_length=20)]
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Strict, immutable, camelCase outside; `frozen` and `kw_only` are repeated in each because type checkers
    do not inherit them.
    """


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Passes over fields that it does not know."""
