"""What all kinds of the group have in common, and what all settings are made of."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

GROUP: Final = "ullage.dev"
API_VERSION: Final = "ullage.dev/v1alpha1"

Percentage = Annotated[int, Meta(ge=0, le=100)]
DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
REPOSITORY_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
REPOSITORY_NAME_MAX: Final = 57
"""Characters of a repository's name: with `-nodes` it is the name of a Service, which is one label of DNS."""

DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"


Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", max_length=20)]
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]

PluginName = Annotated[str, Meta(max_length=253)]
"""Of an entry point: far above any, and below what a condition has room for."""

DNS_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_KEY: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
)
LABEL_VALUE: Final = r"^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"
LabelKey = Annotated[str, Meta(pattern=LABEL_KEY, max_length=317)]
LabelValue = Annotated[str, Meta(pattern=LABEL_VALUE, max_length=63)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Strict, immutable, camelCase outside; `frozen` and `kw_only` are repeated in each because type checkers
    do not inherit them.
    """


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Passes over fields that it does not know."""
