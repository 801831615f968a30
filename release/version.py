"""Give the checkout a version: `make release VERSION=0.3.0` begins with it.

The files of changes/ become the version's entry in CHANGELOG.md. The version in sbatchgen/__init__.py and in
scripts of pages and tests follows, and all this is one commit.
"""

from __future__ import annotations

import re
import sys

from packaging.version import InvalidVersion, Version

from release.build import ROOT, run, stop_if_changed, version_of_checkout


def main() -> None:
    """Commit a version; do nothing if it is the checkout's already."""
    version, now = sys.argv[1], version_of_checkout()
    if version == now:
        return
    try:
        is_later = Version(version) > Version(now)
    except InvalidVersion as error:
        sys.exit(f"error: {error}\n  fix: make release VERSION=0.3.0")
    if not is_later:
        sys.exit(f"error: {version} is not later than {now}")
    if not [*ROOT.glob("changes/*.md")]:
        sys.exit(f"error: nothing has changed since {now}\n  at:  changes\n  fix: CONTRIBUTING.md says how")
    stop_if_changed()
    run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version)
    module = ROOT / "sbatchgen/__init__.py"
    module.write_text(module.read_text().replace(f'"{now}"', f'"{version}"'))
    write_into_scripts(now, version)
    run("git", "commit", "--quiet", "--all", "--message", f"Release {version}")


def write_into_scripts(now: str, version: str) -> None:
    """Replace the version in the comment of each script of the documentation and of the tests."""
    comment = re.compile(rf"(sbatchgen(?: |&#160;)){re.escape(now)}(?=(?: |&#160;)\([0-9a-f]{{12}}\))")
    for file in run("git", "grep", "-lF", now, "--", "docs", "tests/golden").splitlines():
        text = (ROOT / file).read_text()
        (ROOT / file).write_text(comment.sub(rf"\g<1>{version}", text))


if __name__ == "__main__":
    main()
