"""Commands of a script that need the internet, on nodes that have none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from sbatchgen.dryrun.found import found
from sbatchgen.dryrun.run import DryRun
from sbatchgen.executables.program import programs
from sbatchgen.finding import Finding

_VERBS = "|".join(sorted(programs("downloads", "fetches"))).replace("pip ", r"pip[\d.]* ")
_DOWNLOAD = re.compile(rf"(?:python[\d.]* -m )?(?:{_VERBS})\b")
_ADDRESS = re.compile(
    r"(?:https?|ftp|ssh|git|docker|oras|library)://(?!localhost|127\.|\[::1\])|^[\w.-]+@[\w.-]+:"
)
_BY_ADDRESS = tuple(programs("fetches"))
_HERE = re.compile(r"--(?:no-index|offline|dry-run|use-local|find-links|clone)\b|^(?:-f|\.|/|\.{1,2}/|file:)")
_FIX = "do it on the login node, before the job (internet: false in the profile says that nodes can't)"
_PROXY = re.compile(r"(?i)\b(?:https?|all)_proxy=")


def downloads(done: DryRun) -> Iterator[Finding]:
    """Yield a finding for each line that downloads something where the profile says that nodes can't."""
    script = done.script
    names = list(script.resources.partitions) or [str(script.profile.default_partition)]
    of_job = [part for name, part in script.profile.partitions.items() if str(name) in names]
    if not of_job or any(part.internet is not False for part in of_job) or _PROXY.search(script.text):
        return
    seen = set()
    for entry in done.trace:
        if entry.line not in seen and (what := _download(entry.command)):
            seen.add(entry.line)
            what = f"{what} needs the internet, and nodes of {names[0]} have none"
            yield found(done, entry.line, what, _FIX)


def _download(command: str) -> str:
    """Return the first words of a command that needs the internet, or ""."""
    match = _DOWNLOAD.match(command)
    if not match:
        return ""
    try:
        words = shlex.split(command[match.end() :])
    except ValueError:
        return ""
    has_address = any(map(_ADDRESS.search, words))
    if match[0].startswith(_BY_ADDRESS):
        return match[0] if has_address else ""
    return "" if any(map(_HERE.match, words)) else match[0]
