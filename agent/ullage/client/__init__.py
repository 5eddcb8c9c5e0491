"""The repository of a node's service, behind the interface: over HTTP, the Unix socket and Arrow Flight.

It imports the wire and the interface, and no engine.
"""
