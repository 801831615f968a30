"""What the commands of `profile` print."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from sbatchgen.base.finding import Finding


class ListedProfile(TypedDict):
    """A profile; `broken`: why it can't be used; `used`: whether its name means this one."""

    name: str
    file: str
    broken: str
    site: str
    scheduler: str
    checked: str
    description: str
    url: str
    used: bool


class ProfilesOutput(TypedDict):
    """What `profile list` prints."""

    profiles: Sequence[ListedProfile]


class ProfileOutput(TypedDict):
    """What `profile show` prints."""

    file: str
    profile: Mapping[str, Any]


class _Checked(TypedDict):
    name: str
    findings: Sequence[Finding]


class ChecksOutput(TypedDict):
    """What `profile check` prints."""

    profiles: Sequence[_Checked]


class SourceOutput(TypedDict):
    """Where keys are documented."""

    keys: Sequence[str]
    url: str


class SourcesOutput(TypedDict):
    """What `profile sources` prints."""

    name: str
    sources: Sequence[SourceOutput]
