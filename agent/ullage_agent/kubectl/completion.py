"""Completion as kubectl has it of its plug-ins, whatever the shell.

kubectl runs `kubectl_complete-ullage` with the words so far, and takes one proposal a line, its description behind a
tab, and a directive of cobra's in the last line.
"""

import sys

from click.shell_completion import ShellComplete

NO_FILES = 4
"""cobra's ShellCompDirectiveNoFileComp: what is proposed is all that there is."""

DEFAULT = 0
"""cobra's ShellCompDirectiveDefault: the shell proposes names of files."""


def complete_words(*, prog_name: str) -> None:
    """Print what may come next, after the words on the command line, of which the last is being typed."""
    from ullage_agent.kubectl.app import app

    words = sys.argv[1:] or [""]
    found = ShellComplete(app, {}, prog_name, "_ULLAGE_COMPLETE").get_completions(words[:-1], words[-1])
    for each in found:
        if each.type == "plain":
            sys.stdout.write(f"{each.value}\t{each.help or ''}".rstrip() + "\n")
    is_file = any(each.type != "plain" for each in found)
    sys.stdout.write(f":{DEFAULT if is_file else NO_FILES}\n")
