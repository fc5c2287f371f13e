"""Profiles and features: what an implementation can claim, and which cases a claim is held to.

Belongs here: reading cases/profiles.yaml and choosing. Does not belong here: what a test machine can do (features.py).
A feature belongs to one profile; a profile can include another one. A case is of a profile when all features that it
names are.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvconform.shapes import Document, list_of, mapping_of, record, text

_SHAPE = record(
    {
        "profiles": mapping_of(record({"title": text, "includes": list_of(text)}, ("title",))),
        "features": mapping_of(record({"title": text, "profile": text}, ("title", "profile"))),
    },
    ("profiles", "features"),
)


@dataclass(frozen=True)
class Profiles:
    """Feature -> what it is, feature -> its profile, and profile -> profiles that it consists of."""

    features: Mapping[str, str]
    profile_of: Mapping[str, str]
    parts: Mapping[str, tuple[str, ...]]

    def within(self, profile: str) -> frozenset[str]:
        """Return the features of a profile; all of them for ""."""
        wanted = self.parts.get(profile, ())
        return frozenset(name for name in self.features if not profile or self.profile_of[name] in wanted)

    def holds(self, profile: str, features: Iterable[str]) -> bool:
        """Tell whether a case with these features is part of a profile."""
        return set(features) <= self.within(profile)


def load_profiles(path: Path) -> Profiles:
    """Read profiles.yaml.

    Raises: DocumentError, also for a feature of a profile that is not there.
    """
    document = Document(path)
    document.check(_SHAPE)
    profiles, features = document.value["profiles"], document.value["features"]
    for name, feature in features.items():
        if feature["profile"] not in profiles:
            raise document.error(("features", name, "profile"), f"no profile {feature['profile']}")
    return Profiles(
        features={name: feature["title"] for name, feature in features.items()},
        profile_of={name: feature["profile"] for name, feature in features.items()},
        parts={name: (name, *profile.get("includes", ())) for name, profile in profiles.items()},
    )


def unclaimed(features: Iterable[str], claims: Collection[str]) -> str:
    """Return the reason of a skip for features that an implementation does not claim, "" when it claims all."""
    missing = sorted(set(features) - set(claims))
    return f"not claimed: {', '.join(missing)}" if missing else ""
