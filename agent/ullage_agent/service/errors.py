"""What can go wrong with the process that serves a repository; what a caller may meet stands in ullage.errors."""


class ReloadRefused(Exception):
    """New settings that cannot take effect while the repository is open; the message names the fields."""


class CannotListen(Exception):
    """A port, a certificate or a token file that the service needs is not to be had."""
