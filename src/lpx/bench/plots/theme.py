"""Colours of pictures: light, dark, and names that a page gives meaning to."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours as `#rrggbb`. `series` are told apart by colour-blind people, too (after Okabe and Ito, 2008)."""

    paper: str
    ink: str
    faint: str  # grid lines
    series: tuple[str, ...]


LIGHT = Theme(
    paper="#ffffff",
    ink="#24292f",
    faint="#d8dee4",
    series=("#0072b2", "#d55e00", "#009e73", "#a8487f", "#b07d00", "#3d8fc4", "#6f42c1", "#57606a"),
)
DARK = Theme(
    paper="#15181c",
    ink="#e6e8eb",
    faint="#343a42",
    series=("#56b4e9", "#ff9f50", "#34d1a0", "#e892c2", "#f0d442", "#8cc8f0", "#b79bf0", "#a0a8b0"),
)

# Colours that nobody uses, to be found again in an SVG.
NAMED = Theme(
    paper="#010a01",
    ink="#010a02",
    faint="#010a03",
    series=tuple(f"#010b{number:02x}" for number in range(len(LIGHT.series))),
)


def css_variables(theme: Theme) -> str:
    """`--paper: #ffffff; …` for the names that `with_css_names` writes."""
    return " ".join(f"{name}: {colour};" for name, colour in _by_name(theme).items())


def with_css_names(svg: str) -> str:
    """An SVG that was drawn in `NAMED`, in colours of the page's variables."""
    for name, colour in _by_name(NAMED).items():
        svg = svg.replace(colour, f"var({name})")
    return svg


def _by_name(theme: Theme) -> dict[str, str]:
    plain = {f"--{field.name}": getattr(theme, field.name) for field in fields(theme) if field.name != "series"}
    return plain | {f"--series-{number}": colour for number, colour in enumerate(theme.series)}
