"""What was measured with and without drafts: figures of tasks and kinds, the tables, and whether they are as wanted."""

import math
import statistics
from dataclasses import asdict, dataclass, field

from lpx.bench.statistics import alternating_ratio

LEAST_RATIO = 0.97  # no task should be slower than this
SURE_WIDTH = 0.04  # of an interval that says enough
LEAST_MEDIAN = {"code_rewrite": 2.0, "quote": 2.0}  # speed-ups wanted, by kind
LEAST_TOKENS = 16  # a shorter answer takes too few steps to be timed: it is shown, and not judged
MODES = ("auto", "off")


class _Compared:
    """What both kinds of runs share: a `speed_up`, from the rounds that were measured so far."""

    @property
    def ratio(self):
        return self.speed_up.estimate

    @property
    def seems_slow(self):
        return self.judged and self.ratio < LEAST_RATIO

    @property
    def sure(self):
        """Whether the least ratio lies outside of the interval, or the interval is narrow."""
        found = self.speed_up
        return not found.low <= LEAST_RATIO <= found.high or found.high - found.low <= SURE_WIDTH


@dataclass
class TaskRuns(_Compared):
    """One task at one temperature: what each kept round gave, by mode."""

    kind: str
    name: str
    temperature: float
    tokens: int = 0  # of the answer
    answers: dict[str, list[dict]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    other_share: list[float] = field(default_factory=list)  # a value a round
    peer_rates: dict[str, list[float]] = field(default_factory=dict)  # tokens/s of "plain" and "lookup"
    peer_other_share: list[float] = field(default_factory=list)

    def decode_ms(self, mode):
        return statistics.median(answer["decode_ms"] for answer in self.answers[mode])

    def ttft_ms(self, mode):
        return statistics.median(answer["ttft_ms"] for answer in self.answers[mode])

    def rate(self, mode):
        """Tokens a second behind the first token; 0: there are none."""
        ms = self.decode_ms(mode)
        return 1e3 * (self.tokens - 1) / ms if ms else 0.0

    def sum(self, figure):
        """Of all rounds with drafts allowed."""
        return sum(answer[figure] for answer in self.answers["auto"])

    @property
    def rounds(self):
        return len(self.other_share)

    @property
    def judged(self):
        return self.rounds > 0 and self.tokens >= LEAST_TOKENS

    @property
    def speed_up(self):
        """How many times as fast with drafts: an interval, from the rounds of which each gives one ratio."""
        return alternating_ratio(*([1 / answer["decode_ms"] for answer in self.answers[mode]] for mode in MODES))

    @property
    def rounds_slower(self):
        pairs = zip(self.answers["auto"], self.answers["off"], strict=True)
        return sum(auto["decode_ms"] > off["decode_ms"] for auto, off in pairs)

    @property
    def accepted_length(self):
        """Mean over the rounds with drafts of what a verified draft gave; 0: no draft."""
        lengths = [answer["mean_accepted_length"] for answer in self.answers["auto"] if answer["drafted"]]
        return statistics.fmean(lengths) if lengths else 0.0

    def peer_rate(self, side):
        return statistics.median(self.peer_rates[side])


@dataclass
class StreamRuns(_Compared):
    """Tasks of one kind, all at once: tokens a second of all together, a value a round."""

    kind: str
    temperature: float
    streams: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    drafted: int = 0
    accepted: int = 0
    other_share: list[float] = field(default_factory=list)

    def rate(self, mode):
        return statistics.median(self.rates[mode])

    @property
    def judged(self):
        return True

    @property
    def speed_up(self):
        """As of a task."""
        return alternating_ratio(*(self.rates[mode] for mode in MODES))


def first_difference(expected, given):
    """Position of the first token that differs, counted from 0; None: there is none."""
    for at, (one, other) in enumerate(zip(expected, given, strict=False)):
        if one != other:
            return at
    return None if len(expected) == len(given) else min(len(expected), len(given))


def kind_figures(tasks):
    """Figures of a kind at a temperature, over its tasks; ratios over those that are judged."""
    judged = [task for task in tasks if task.judged]
    ratios = [task.ratio for task in judged]
    drafting = [task.accepted_length for task in tasks if task.accepted_length]
    with_peer = [task for task in judged if task.peer_rates]
    return {
        "kind": tasks[0].kind,
        "temperature": tasks[0].temperature,
        "tasks": len(tasks),
        "judged": len(judged),
        "median": statistics.median(ratios) if ratios else None,
        "worst": min(ratios, default=None),
        "best": max(ratios, default=None),
        "drafted": sum(task.sum("drafted") for task in tasks),
        "accepted": sum(task.sum("accepted") for task in tasks),
        "mean_accepted_length": statistics.fmean(drafting) if drafting else 0.0,
        "share_slower": sum(ratio < LEAST_RATIO for ratio in ratios) / len(ratios) if ratios else None,
        **{f"{mode}_rate": _median(task.rate(mode) for task in judged) for mode in MODES},
        **{f"{mode}_ttft_ms": _median(task.ttft_ms(mode) for task in judged) for mode in MODES},
        "peer_plain_rate": _median(task.peer_rate("plain") for task in with_peer),
        "peer_lookup_rate": _median(task.peer_rate("lookup") for task in with_peer),
        "peer_ratio": _median(task.peer_rate("lookup") / task.peer_rate("plain") for task in with_peer),
    }


def by_kind(tasks):
    """`kind_figures` by temperature and kind, in order of appearance."""
    groups = {}
    for task in tasks:
        if task.rounds:
            groups.setdefault((task.temperature, task.kind), []).append(task)
    figures = [kind_figures(group) for group in groups.values()]
    return sorted(figures, key=lambda figure: figure["temperature"])  # stable


def slow_tasks(tasks):
    """Judged tasks below the least ratio, the slowest first."""
    return sorted((t for t in tasks if t.seems_slow), key=lambda task: task.ratio)


def verdict(kinds, streams):
    """By temperature, the wanted figures: (what, whether it holds; None: not measured)."""
    wanted = {}
    for temperature in dict.fromkeys(figure["temperature"] for figure in kinds):
        at = [figure for figure in kinds if figure["temperature"] == temperature and figure["judged"]]
        medians = {figure["kind"]: figure["median"] for figure in at}
        together = [runs for runs in streams if runs.temperature == temperature]
        count = max((runs.streams for runs in together), default=0)
        wanted[temperature] = [
            *(
                (f"median of {kind} >= {least}", medians[kind] >= least if kind in medians else None)
                for kind, least in LEAST_MEDIAN.items()
            ),
            (f"no task < {LEAST_RATIO}", all(f["worst"] >= LEAST_RATIO for f in at) if at else None),
            (
                f"no kind < {LEAST_RATIO} with {count} streams" if together else "no kind slower with many streams",
                all(runs.ratio >= LEAST_RATIO for runs in together) if together else None,
            ),
        ]
    return wanted


def as_json(tasks, streams, quiet):
    kinds = by_kind(tasks)
    return {
        "kinds": kinds,
        "streams": [asdict(runs) | {"ratio": runs.ratio, "ratio_interval": _bounds(runs)} for runs in streams],
        "wanted": [
            {"temperature": temperature, "figures": dict(wanted)}
            for temperature, wanted in verdict(kinds, streams).items()
        ],
        "tasks": [_task_json(task, quiet) for task in tasks if task.rounds],
    }


def _task_json(task, quiet):
    return asdict(task) | {
        "judged": task.judged,
        "ratio": task.ratio if task.judged else None,
        "ratio_interval": _bounds(task) if task.judged else None,
        "rounds_slower": task.rounds_slower,
        "disturbed": _disturbed(task, quiet),
        **{f"{mode}_rate": task.rate(mode) for mode in MODES},
        **{f"{mode}_ttft_ms": task.ttft_ms(mode) for mode in MODES},
        "mean_accepted_length": task.accepted_length,
        "peer": {side: task.peer_rate(side) for side in task.peer_rates},
    }


def lines(tasks, streams, differences, quiet):
    """The tables, line by line."""
    kinds = by_kind(tasks)
    peer = any(figure["peer_ratio"] for figure in kinds)
    yield (
        f"{'kind':12} {'temp.':>5} {'tasks':>5} {'judged':>6} {'median':>6} {'worst':>6} {'best':>6} {'drafted':>8} "
        f"{'accepted':>8} {'length':>6} {'slower':>6} {'auto':>7} {'off':>7} {'ttft':>5} {'off':>5}"
        + (f" {'llama.cpp':>9} {'lookup':>7} {'ratio':>6}" if peer else "")
    )
    for f in kinds:
        yield (
            f"{f['kind']:12} {f['temperature']:5g} {f['tasks']:5} {f['judged']:6} {_shown(f['median'], 6, 2)} "
            f"{_shown(f['worst'], 6, 2)} {_shown(f['best'], 6, 2)} {f['drafted']:8} {f['accepted']:8} "
            f"{f['mean_accepted_length']:6.2f} {_percent(f['share_slower'], 6)} {_shown(f['auto_rate'], 7, 1)} "
            f"{_shown(f['off_rate'], 7, 1)} {_shown(f['auto_ttft_ms'], 5, 0)} {_shown(f['off_ttft_ms'], 5, 0)}"
            + (
                f" {_shown(f['peer_plain_rate'], 9, 1)} {_shown(f['peer_lookup_rate'], 7, 1)} "
                f"{_shown(f['peer_ratio'], 6, 2)}"
                if peer
                else ""
            )
        )
    slow = slow_tasks(tasks)
    yield ""
    yield f"tasks below {LEAST_RATIO}: {len(slow) or 'none'}"
    for task in slow:
        share = statistics.median(task.other_share)
        yield (
            f"  {task.kind:12} {task.name:32} {task.temperature:4g} {_interval(task.speed_up)}  slower in "
            f"{task.rounds_slower} of {task.rounds} rounds, {task.tokens} tokens, drafted {task.sum('drafted')}, "
            f"accepted {task.sum('accepted')}, others' CPU {share:.0%}{' disturbed' if _disturbed(task, quiet) else ''}"
        )
    if disturbed := sum(_disturbed(task, quiet) for task in tasks if task.rounds):
        yield f"disturbed: {disturbed} of {len(tasks)} tasks; do not quote these figures"
    if disturbed := sum(statistics.median(t.peer_other_share) > quiet for t in tasks if t.peer_other_share):
        yield f"disturbed: llama.cpp in {disturbed} tasks; do not quote its figures"
    if streams:
        yield ""
        yield f"{'together':12} {'temp.':>5} {'streams':>7} {'auto':>8} {'off':>8} {'ratio':>23} others' CPU"
    for runs in streams:
        share = statistics.median(runs.other_share)
        yield (
            f"{runs.kind:12} {runs.temperature:5g} {runs.streams:7} {runs.rate('auto'):8.1f} {runs.rate('off'):8.1f} "
            f"{_interval(runs.speed_up):>23} {share:4.0%}{' disturbed' if _disturbed(runs, quiet) else ''}"
        )
    yield ""
    for d in differences:
        yield (
            f"DIFFERENT TEXT: {d['kind']} {d['name']} at temperature {d['temperature']:g}, {d['mode']}, round "
            f"{d['round']}: token {d['position']} is {d['given']}, not {d['expected']}"
        )
    yield "texts: " + (f"{len(differences)} DIFFERENT" if differences else "the same in every run")
    for temperature, wanted in verdict(kinds, streams).items():
        said = {True: "yes", False: "NO", None: "not measured"}
        yield f"wanted at temperature {temperature:g}: " + "; ".join(f"{what}: {said[ok]}" for what, ok in wanted)


def _disturbed(runs, quiet):
    return statistics.median(runs.other_share) > quiet


def _bounds(runs):
    found = runs.speed_up
    return None if math.isinf(found.high) else [found.low, found.high]


def _interval(found):
    """The ratio, with the interval that it lies in with 95 %; one round has none."""
    bounds = "" if math.isinf(found.high) else f" ({found.low:.3f} to {found.high:.3f})"
    return f"{found.estimate:.3f}{bounds}"


def _median(values):
    values = list(values)
    return statistics.median(values) if values else None


def _shown(value, width, digits):
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def _percent(value, width):
    return f"{'-':>{width}}" if value is None else f"{value:{width}.0%}"
