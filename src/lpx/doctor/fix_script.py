"""The fixes of findings as one shell script, for the user to read and run: LPX runs none of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lpx.doctor.finding import Finding, Fix
from lpx.doctor.new_file import write_new
from lpx.errors import ConfigError

_HEAD = """\
#!/bin/sh
# Written by lpx doctor. Read it before you run it: sh {name}
# Each step looks first whether it is still needed, so that the script can be run again.
# Steps that end processes or restart the machine are commented out.
set -eu

"""

# Only what the steps use, so that no line is left without a purpose.
_FUNCTIONS = {
    "as_root": """\
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}
""",
    "install_packages": """\
install_packages() { # of the form 'manager:package'; the first manager that is there takes its own
    for pair in "$@"; do
        manager=${pair%%:*}
        package=${pair#*:}
        command -v "$manager" >/dev/null || continue
        case $manager in
            apt-get) as_root apt-get install -y "$package" ;;
            dnf) as_root dnf install -y "$package" ;;
            zypper) as_root zypper install -y "$package" ;;
            pacman) as_root pacman -S --needed --noconfirm "$package" ;;
        esac
        return
    done
    echo "no known package manager; install by hand: $*" >&2
    return 1
}
""",
}


def fix_script(findings: Sequence[Finding], name: str = "fix.sh") -> str:
    """The script's text. Text that came from the machine stands in comments only, without line breaks."""
    steps = [_step(number, finding, fix) for number, (finding, fix) in enumerate(_distinct(findings), 1)]
    by_hand = [finding for finding in findings if finding.do and not finding.fixes]
    body = "\n".join(steps) if steps else "# There is nothing that a script could mend.\n"
    used = [text for function, text in _FUNCTIONS.items() if _calls(function, body)]
    if any("as_root " in text for text in used) and _FUNCTIONS["as_root"] not in used:
        used.insert(0, _FUNCTIONS["as_root"])
    parts = [_HEAD.format(name=_comment(name)), *(text + "\n" for text in used), body]
    if by_hand:
        parts.append("\n# To do by hand:\n")
        parts += [f"# - {_comment(each.title)}: {_comment(each.found)}\n#   {_comment(each.do)}\n" for each in by_hand]
    return "".join(parts)


def write_fix_script(path: Path, findings: Sequence[Finding]) -> None:
    """Write the script for its owner alone. Raises ConfigError where the file exists or cannot be written."""
    text = fix_script(findings, path.name)
    try:
        write_new(path, text, 0o700)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; remove it or name another file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"the script {path} cannot be written: {getattr(error, 'strerror', error)}") from None


def _distinct(findings: Sequence[Finding]) -> list[tuple[Finding, Fix]]:
    seen: dict[Fix, Finding] = {}
    for finding in findings:
        for fix in finding.fixes:
            seen.setdefault(fix, finding)
    return [(finding, fix) for fix, finding in seen.items()]


def _step(number: int, finding: Finding, fix: Fix) -> str:
    lines = [
        f"echo {_quoted(f'{number}. {fix.title}')}",
        f"if {fix.needed}; then",
        *(f"    {command}" for command in fix.commands),
        "else",
        "    echo '   not needed'",
        "fi",
    ]
    if fix.risky:
        lines = [f"# {line}" for line in lines]
    about = [f"# {number}. {_comment(fix.title)}", f"# found: {_comment(finding.found)}", f"# why: {finding.why}"]
    return "\n".join([*about, *lines]) + "\n"


def _calls(function: str, body: str) -> bool:
    return re.search(rf"^(?!#).*\b{function}\b", body, re.MULTILINE) is not None


def _comment(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f\u0085\u2028\u2029]+", " ", text)


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(_comment(text))
