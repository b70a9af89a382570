"""The profile file `lpx.toml`: options of LPX that belong together, kept in a file.

`keys` says which there are, `reader` reads and checks a file, `writer` writes one. Below the rest of LPX, like its
options: nothing here knows commands.
"""

from __future__ import annotations

from lpx.profile.keys import KEYS, SECTIONS, Key, key_named
from lpx.profile.reader import Profile, ProfileError, read_profile
from lpx.profile.writer import profile_text, write_profile

__all__ = [
    "KEYS",
    "SECTIONS",
    "Key",
    "Profile",
    "ProfileError",
    "key_named",
    "profile_text",
    "read_profile",
    "write_profile",
]
