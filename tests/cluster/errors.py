class ClusterError(Exception):
    """A cluster could not be brought up, or what was asked of it did not come about; says what to do where we know."""


class NotPossibleHereError(ClusterError):
    """This machine lacks a privilege, a kernel feature or a program that the level needs; the message names it."""
