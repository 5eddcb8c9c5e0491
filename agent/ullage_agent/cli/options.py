"""What many commands take: which repository they work on, --json, --override; and how a command's help is laid out."""

import enum
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.writing import STDOUT, writing

Function = Callable[..., Any]
Member = TypeVar("Member", bound=enum.StrEnum)

REPOSITORY, SERVICE, BUCKET = "Repository", "Service", "Bucket"


class Option(click.Option):
    """An option that may stand below a heading of its own in the help."""

    def __init__(self, declarations: Sequence[str], section: str = "Options", **settings: Any) -> None:
        super().__init__(declarations, show_default=settings.get("default") != "", **settings)
        self.section = section


class Command(click.Command):
    """A command whose help has the headings of its options."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with writing(STDOUT):  # help is printed here
            return super().make_context(*args, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Group(click.Group):
    """A group of commands that have headings."""

    command_class = Command


class OneOf(click.Choice[Member]):
    """A member of an enumeration, written as its value."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return str(choice)


class Quantified(click.ParamType[int]):
    """A number with its unit, such as 50Mi of bytes or 12h; the command gets bytes, or milliseconds."""

    def __init__(self, name: str, unit: str) -> None:
        self.name = name
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from ullage import contract

        try:
            return int(getattr(contract, self._unit).parse(value)) if isinstance(value, str) else int(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE; the command gets both."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, found = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        try:
            value.encode()
        except UnicodeEncodeError:  # of bytes that are no UTF-8 Python makes half characters
            self.fail(f"{value!r} is no Unicode text: names and values are UTF-8", param, ctx)
        return name, found


command: Final = functools.partial(click.command, cls=Command)
option: Final = functools.partial(click.option, cls=Option)

FILE: Final = click.Path(path_type=Path)
SIZE: Final = Quantified("size", "Quantity")
DURATION: Final = Quantified("time", "Duration")
PAIR: Final = Pair()


def from_environment(metavar: str, *names: str, **settings: Any) -> Callable[[Function], Function]:
    """An option that a variable of its name may stand for."""
    variable = "ULLAGE_" + names[0].removeprefix("--").replace("-", "_").upper()
    type = FILE if metavar in ("FILE", "DIR") else str
    return option(*names, type=type, metavar=metavar, envvar=variable, show_envvar=True, **settings)


_of_files = functools.partial(from_environment, section=REPOSITORY)
_of_service = functools.partial(from_environment, section=SERVICE)
_of_bucket = functools.partial(option, section=BUCKET, show_envvar=True)  # by the names that Amazon's tools go by

OF_FILES: Final = (
    _of_files("DIR", "--root", "-r", help="The repository's directory; its settings are the defaults."),
    _of_files(
        "FILE",
        "--config",
        "-c",
        help="A ContentRepository as YAML: where the repository lies, and its settings (docs/configuration.md).",
    ),
)

OF_SERVICE: Final = (
    _of_service(
        "URL",
        "--url",
        help="Ask the service at this URL, such as http://127.0.0.1:8480/, instead of opening a repository's files.",
    ),
    _of_service("FILE", "--token-file", help="With --url, show the token in this file, as `ullage token` printed it."),
    _of_service(
        "FILE",
        "--ca",
        help="With --url, the file of the authority that signed the service's certificate, unless the system knows it.",
    ),
)

OF_BUCKET: Final = (
    _of_bucket(
        "--endpoint",
        metavar="URL",
        envvar=["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
        help="The URL of a server that is not Amazon's, https://HOST:PORT.",
    ),
    _of_bucket(
        "--region",
        metavar="NAME",
        envvar=["AWS_REGION", "AWS_DEFAULT_REGION"],
        help="The region of the bucket. The default is us-east-1.",
    ),
    _of_bucket(
        "--ca-file",
        type=FILE,
        metavar="FILE",
        envvar="AWS_CA_BUNDLE",
        help="The file of the authority that signed the server's certificate, unless the system knows it.",
    ),
    _of_bucket(
        "--credentials-file",
        type=FILE,
        metavar="FILE",
        envvar="AWS_SHARED_CREDENTIALS_FILE",
        help="Credentials as Amazon's tools keep them, read anew while it lasts; else AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or the identity of the machine.",
    ),
    _of_bucket(
        "--encryption",
        metavar="KIND",
        help="Have the server encrypt what is written: AES256 or aws:kms. The default is what the bucket's rule says.",
    ),
    _of_bucket(
        "--encryption-key", metavar="ID", help="With aws:kms, the id of the key. The default is the account's key."
    ),
)

BUCKET_NAMES: Final = ("endpoint", "region", "ca_file", "credentials_file", "encryption", "encryption_key")
"""Those, as fields of a Bucket."""

json_output: Final = option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout, with sizes in bytes."
)


def on_files(function: Function) -> Function:
    """A command on the files of a repository; it gets `where`."""
    return _with(OF_FILES, function)


def on_repository(function: Function) -> Function:
    """A command on a repository's files or on a running service; it gets `where` and `as_json`."""
    return _with((json_output, *OF_FILES, *OF_SERVICE), function)


def on_service(function: Function) -> Function:
    """A command on a running service alone, or on no repository; it gets `where` and `as_json`."""

    @functools.wraps(function)
    def without_files(**given: Any) -> Any:
        return _chosen(function, None, None, given)

    return with_options(without_files, (json_output, *OF_SERVICE))


def on_bucket(function: Function) -> Function:
    """A command on a backup: its argument, the only one that may be a place in a bucket, is that place as a `Bucket`.

    Credentials are no options: every user of the machine can read the arguments of a process.
    """

    @functools.wraps(function)
    def wrapped(**given: Any) -> Any:
        from ullage.interface.buckets import SCHEME, Bucket

        said: dict[str, Any] = {name: str(given.pop(name) or "") for name in BUCKET_NAMES}
        for name in ("destination", "source"):
            if given.get(name, "").startswith(SCHEME):
                given[name] = Bucket(url=given[name], **said)
        return function(**given)

    return with_options(wrapped, OF_BUCKET)


def _with(options: Sequence[Callable[[Function], Function]], function: Function) -> Function:
    @functools.wraps(function)
    def wrapped(*, root: Path | None, config: Path | None, **rest: Any) -> Any:
        return _chosen(function, root, config, rest)

    return with_options(wrapped, options)


def _chosen(function: Function, root: Path | None, config: Path | None, rest: dict[str, Any]) -> Any:
    ctx = click.get_current_context()

    def is_written(name: str) -> bool:
        return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE

    chosen = {name: rest.pop(name, None) for name in ("url", "token_file", "ca")}
    return function(where=ChosenRepository(root, config, **chosen, is_written=is_written), **rest)


def with_options(function: Function, options: Sequence[Callable[[Function], Function]]) -> Function:
    """The function with these options before its own."""
    for each in reversed(options):
        function = each(function)
    return function


override: Final = option(
    "--override", is_flag=True, help="Pass over the windows of spec.maintenance; what is paused stays paused."
)
container_paths: Final = option(
    "--container",
    "containers",
    type=PAIR,
    metavar="NAME=PATH",
    multiple=True,
    help="Place this container at another path below ROOT.",
)
