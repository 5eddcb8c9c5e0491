"""`ullage audit`: who did what, as the audit log on this machine has it."""

import time

import msgspec

from ullage.clock import moment_of
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import DURATION, command, json_output, on_files, option
from ullage_agent.cli.output import print_json, print_table, size
from ullage_agent.service.audit import AuditLine, lines_of


@command()
@option("--who", default="", help="Show only lines of the principal of this name.")
@option(
    "--what", default="", help="Show only lines that have this text in operation, path or document, ids, or reason."
)
@option(
    "--since",
    "since_millis",
    type=DURATION,
    default="0s",
    help="Show only lines of this last stretch of time, such as 24h; 0s shows all there are.",
)
@json_output
@on_files
def audit(where: ChosenRepository, who: str, what: str, since_millis: int, as_json: bool) -> None:
    """Show who read content, changed or deleted something, or was refused, oldest first: earlier files too."""
    begin = ""
    if since_millis:
        begin = moment_of(int(time.time() * 1000) - since_millis).isoformat(timespec="milliseconds")
    found = [
        line
        for line in lines_of(where.root_directory)
        if line.time >= begin and who in ("", line.who) and (not what or what in _text_of(line))
    ]
    if as_json:
        print_json([msgspec.to_builtins(line) for line in found])
        return
    columns = ("time", "who", "via", "from", "operation", "about", "bytes", "allowed")
    print_table(columns, map(_row, found))


def _text_of(line: AuditLine) -> str:
    return "\n".join((line.operation, line.about, line.why, *line.ids))


def _row(line: AuditLine) -> tuple[str, ...]:
    about = line.about or ", ".join(line.ids[:1])
    allowed = "yes" if line.allowed else line.why.partition(":")[0] or "no"
    return line.time, line.who or "-", line.via, line.peer, line.operation, about, size(line.bytes), allowed
