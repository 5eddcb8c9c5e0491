"""What every section of the contract is."""

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Strict, immutable, camelCase outside; `frozen` and `kw_only` are repeated below because type checkers
    do not inherit them.
    """
