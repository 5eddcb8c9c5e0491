"""Repositories in memory: what they keep is gone when the process ends, as with NiFi's volatile ones.

For tests that need no disk: `ullage.testing.open` has all three. And where a history of the present is enough
(`spec.provenance.repository: memory`). Content and FlowFiles go together: what one forgets, the other must not name.
"""
