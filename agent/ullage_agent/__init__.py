"""Ullage on one node: the repository engine, and what serves it."""

__version__ = "0.1.0"
