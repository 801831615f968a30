"""What the commands of `profile` print as JSON, as types."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from sbatchgen.base.finding import Finding


class ListedProfile(TypedDict):
    """A profile in the list of profiles."""

    name: str
    file: str
    broken: str  # why the profile can't be used; "" if it can
    site: str
    scheduler: str
    checked: str  # the day on which the profile was last compared with its source
    description: str
    url: str  # the documentation that is the source of the profile
    used: bool  # whether the name means this profile, and not another with the same name


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
    """A document that is the source of keys of a profile."""

    keys: Sequence[str]
    url: str


class SourcesOutput(TypedDict):
    """What `profile sources` prints."""

    name: str
    sources: Sequence[SourceOutput]
