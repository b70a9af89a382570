"""Letters for all names in a picture: matplotlib's own font, and the first on this machine that has Chinese."""

from __future__ import annotations

from collections.abc import Iterable

# Families that cover Chinese, as Linux, macOS and Windows have them.
_CHINESE = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei"),
    *("WenQuanYi Zen Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans GB", "Heiti SC", "Microsoft YaHei"),
    *("SimHei", "SimSun", "Noto Sans CJK JP", "AR PL UMing CN", "Unifont"),
)
_FIRST_FOREIGN = 0x2E80  # Chinese, Japanese, Korean and what is above them


def families() -> list[str]:
    """For `font.family`: names that are there only, because every other one would be warned of."""
    from matplotlib.font_manager import fontManager

    there = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in _CHINESE if name in there][:1]]


def lacks_letters(texts: Iterable[str]) -> bool:
    """Whether a picture with these texts shows boxes, because no font here has Chinese."""
    return len(families()) == 1 and any(ord(letter) >= _FIRST_FOREIGN for text in texts for letter in text)
