"""What can end a run of a batch, or keep it from starting."""

from __future__ import annotations

from lpx.errors import OUTPUT_NOT_WRITTEN, ConfigError, LpxError


class BatchFileError(ConfigError):
    """An input, output or config file cannot be used; the message names it and the reason."""

    help_code = "LPX-E094"


class OutputWriteError(LpxError):
    """Results cannot be written any more (disk full, device gone); what was written before is whole."""

    help_code = OUTPUT_NOT_WRITTEN


class TargetGone(LpxError):
    """Whoever answers has gone for good, or refuses everything: the run stops, and can be resumed."""

    help_code = "LPX-E092"


class TargetUnreachable(Exception):
    """One request got no answer: refused, reset, timed out. It may be tried again."""
