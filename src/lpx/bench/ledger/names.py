"""Names that users give: tags and baselines."""

from __future__ import annotations

from lpx.errors import ConfigError

_LONGEST = 100


def checked_name(what: str, text: str) -> str:
    """The name without blanks around it. Raises ConfigError for what cannot be shown in a table or typed in a shell."""
    name = text.strip()
    if not name or len(name) > _LONGEST or not name.isprintable():
        raise ConfigError(f"a {what} is 1 to {_LONGEST} printable characters, not {text!r}")
    return name


def checked_baseline(text: str) -> str:
    """The name of a baseline that `Ledger.named` can reach. Raises ConfigError for what means another run there."""
    name = checked_name("baseline", text)
    if name == "last":
        raise ConfigError("a baseline cannot be called 'last', which means the newest run; take another name")
    if name.isascii() and name.isdigit():
        raise ConfigError(f"a baseline cannot be called {name!r}: a number means the run of that number; add a letter")
    return name
