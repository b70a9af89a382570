"""The profile that a tuning writes: what was given, what was found, and why."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from lpx.bench.tune.comparison import CONFIDENCE
from lpx.bench.tune.goal import Goal
from lpx.bench.tune.tuner import CHECK, Outcome, Step
from lpx.profile import profile_text


def tuned_profile(outcome: Outcome, goal: Goal, given: Mapping[str, Any], machine: str, today: date) -> str:
    """TOML of `given` (options that were there before, the model among them) and of the values that were kept."""
    heading = [
        f"Tuned by lpx tune for {goal.target}"
        + (f" within {goal.slo.describe()} ms" if goal.slo else "")
        + (f", {goal.concurrency} requests at once" if goal.concurrency > 1 else "")
        + f", {today.isoformat()}.",
        f"Measured on {machine}; elsewhere other values may be better.",
        "Use it with: lpx serve --profile FILE (run, chat and bench latency take it, too).",
    ]
    if not outcome.finished:
        heading.append(f"{unfinished(outcome)}.")
    if outcome.disturbed:
        heading.append(
            f"Other programs used {outcome.others_share:.0%} of the processors: repeat it on a quiet machine."
        )
    if goal.slo and not outcome.keeps_slo:
        heading.append("The limits are NOT kept: this is the nearest that was found.")
    if not outcome.values:
        heading.append(f"{nothing_kept(outcome).capitalize()}.")
    heading += [f"All together: {_gain(step)}." for step in outcome.steps if step.option == CHECK and step.kept]
    notes = {step.option: f"{_gain(step)}; {step.why}" for step in outcome.steps if step.kept and step.option != CHECK}
    return profile_text({**given, **outcome.values}, heading=heading, notes=notes)


def unfinished(outcome: Outcome) -> str:
    """Why a tuning that is not finished ended, in words."""
    count = len(outcome.out_of_time)
    values = "1 value was" if count == 1 else f"{count} values were"
    why = "it was interrupted" if outcome.interrupted else f"the time was over before {values} tried"
    return f"NOT finished: {why}, and this profile holds what was found until then. The same command goes on"


def nothing_kept(outcome: Outcome) -> str:
    """What an outcome without values comes to, in words."""
    tried = "nothing that was tried" if outcome.finished else "nothing that was tried so far"
    return f"{tried} is faster than the defaults without doubt, so they stay"


def _gain(step: Step) -> str:
    if step.ratio is None:
        return "not measured"
    if step.low is None or step.high is None:
        return f"{step.ratio:.3f} times the speed"
    return f"{step.ratio:.3f} times the speed ({step.low:.3f} to {step.high:.3f} with {CONFIDENCE:.0%} confidence)"
