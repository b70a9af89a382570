"""Pictures of runs: what belongs on one curve, names of any kind, files that need nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from lpx.bench.headline import BAD_FIT
from lpx.bench.ledger import Run
from lpx.bench.plots.curves import batch_points, curves_of, environment_changes
from lpx.bench.plots.files import to_image, to_page
from lpx.bench.plots.pictures import pictures_of
from lpx.bench.plots.roofline_drawing import limits_of, placed_runs
from lpx.bench.plots.theme import DARK, LIGHT, NAMED
from lpx.errors import ConfigError
from tests.bench.ledger.example_runs import ENVIRONMENT, NEWER_DRIVER, a_measurement

SPEED = "decode_tokens_per_second"
PLACE = {"multiply_adds_per_token": 5e8, "weight_bytes_per_token": 4e8, "kv_bytes_per_token": 1e6}
NAMES = ("千问$x^{$", "_hidden", '<script>alert(1)</script> & "q" \'', "a\nb\0\x1b[31m", "😀" * 200)


def a_run(number, *arguments, environment=ENVIRONMENT, **changes):
    return Run(
        id=number,
        measurement=a_measurement(*arguments, minutes=60 * number, **changes),
        environment=environment,
        environment_sha256=environment.sha256,
    )


@pytest.fixture
def runs():
    """Each name with two batch sizes, and a new driver in between."""
    return [
        a_run(
            2 * number + index,
            name,
            batch_size=4**index,
            figures={SPEED: 40.0 * (index + 1), "ttft_ms_median": 9.0, "read_bytes_per_second": 3e10, **PLACE},
            environment=ENVIRONMENT if number < 2 else NEWER_DRIVER,
        )
        for number, name in enumerate(NAMES)
        for index in (0, 1)
    ]


@pytest.fixture
def roofline():
    peaks = {"int8_multiply_adds_per_second": 3e11, "int8_4bit_multiply_adds_per_second": 2.9e11}
    figures = {"read_bytes_per_second": 4e10, **peaks}
    return a_run(99, "", kind="roofline", figures=figures, batch_size=None, input_len=None, output_len=None)


def test_curves_are_what_can_be_compared(runs):
    assert [len(curve.runs) for curve in curves_of(runs, SPEED)] == [1] * 10
    assert [len(curve.runs) for curve in curves_of(runs, SPEED, over_batch_size=True)] == [2] * 5
    assert curves_of(runs, "unheard_of") == []
    alone = [a_run(2, batch_size=1), a_run(1, batch_size=1, input_len=512.2)]
    (curve,) = curves_of(alone, SPEED)
    assert (curve.label, [run.id for run in curve.runs]) == ("千问-0.5b", [1, 2])


def test_labels_say_what_differs(runs):
    labels = [curve.label for curve in curves_of([a_run(1), a_run(2, subject={"threads": 2})], SPEED)]
    assert labels == ["4 threads", "2 threads"]
    assert curves_of(runs, SPEED)[0].label == "千问$x^{$ · batch 1"


def test_batch_points_hold_the_spread():
    figures = [{SPEED: speed} for speed in (10.0, 30.0, 20.0)]
    (curve,) = curves_of([a_run(n, figures=each) for n, each in enumerate(figures)], SPEED, over_batch_size=True)
    (point,) = batch_points(curve, SPEED)
    assert (point.batch_size, point.low, point.median, point.high) == (4, 10.0, 20.0, 30.0)


def test_changes_of_the_environment_are_told(runs):
    (change,) = environment_changes(runs)
    assert (change.run_id, change.subjects) == (4, ("driver", "CUDA"))
    assert change.details == ("driver: 550.54.14 → 570.86.10", "CUDA: 12.4 → 12.8")


def test_limits_are_the_best_of_the_machine(runs, roofline):
    worse = a_run(100, "", kind="roofline", figures={"read_bytes_per_second": 1e10})
    other = a_run(101, "", kind="roofline", figures={"read_bytes_per_second": 9e10}, subject={"threads": 64})
    limits = limits_of(runs, [roofline, worse, other])
    assert (limits.read_bytes_per_second, limits.peaks["int8"]) == (4e10, 3e11)
    assert limits_of(runs, []).read_bytes_per_second == 3e10
    assert limits_of([a_run(1)], [roofline]) is None
    assert len(placed_runs([*runs, a_run(1)])) == len(runs)


def test_images_take_any_name(runs, roofline):
    pictures = pictures_of(runs, [roofline])
    assert len(pictures) == 5  # two figures, over time and batch size, and the roofline
    svg = to_image([pictures[0], pictures[4]], "svg", LIGHT).decode()
    ElementTree.fromstring(svg)
    for name in ("千问$x^{$", "_hidden"):
        assert name in svg


def test_the_same_picture_is_the_same_file(runs):
    pictures = pictures_of(runs, [], ["batch"], [SPEED])
    assert to_image(pictures, "svg", LIGHT) == to_image(pictures, "svg", LIGHT)
    assert to_image(pictures, "png", DARK).startswith(b"\x89PNG")


def test_the_page_needs_nothing_and_runs_nothing(runs, roofline):
    page = to_page(pictures_of(runs, [roofline], figures=[SPEED]), runs)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\0" not in page
    for address in re.findall(r'(?:href|src)="([^"]*)"', page):
        assert address.startswith("#")
    assert "url(http" not in page
    assert "prefers-color-scheme: dark" in page
    for colour in (NAMED.paper, NAMED.ink, *NAMED.series):
        assert colour not in page  # all were given names
    assert "var(--ink)" in page
    assert "var(--series-0)" in page
    ids = re.findall(r'\bid="([^"]*)"', page)
    used = set(re.findall(r'(?:url\(|href=")#([^")]*)', page))
    assert used <= set(ids)
    assert "driver: 550.54.14 → 570.86.10" in page


def test_what_cannot_be_drawn_says_what_can(runs):
    with pytest.raises(ConfigError, match=SPEED):
        pictures_of(runs, [], figures=["speed"])
    with pytest.raises(ConfigError, match="time, batch, roofline"):
        pictures_of(runs, [], kinds=["pie"])
    with pytest.raises(ConfigError, match="bench latency"):
        pictures_of([a_run(1)], [], kinds=["roofline"])
    with pytest.raises(ConfigError, match="mean_kl"):
        pictures_of([a_run(1, figures={"mean_kl": 0.1})], [])
    with pytest.raises(ConfigError, match="batch size"):
        pictures_of([a_run(1, batch_size=None)], [], kinds=["batch"])


def test_a_picture_tells_which_runs_it_shows(runs, roofline):
    unsure = a_run(50, "unsure", kind="decode", figures={SPEED: 1e6, BAD_FIT: 1.0})
    lacking = a_run(51, "lacking", figures={"perplexity": 9.0})
    nothing = a_run(52, "nothing", figures={SPEED: float("nan")})
    many = [a_run(100 + number, f"model {number}", batch_size=1) for number in range(3)]
    [picture] = pictures_of([*runs, unsure, lacking, nothing], [], ("time",), (SPEED,))
    assert picture.run_ids == {run.id for run in runs}  # no more curves than can be told apart are drawn
    [picture] = pictures_of([*runs, *many], [], ("time",), (SPEED,))
    assert len(picture.run_ids) == 12
    [picture] = pictures_of([*runs, *many], [roofline], ("roofline",))
    assert picture.run_ids <= {run.id for run in runs}
    with pytest.raises(ConfigError):
        pictures_of([unsure, nothing], [], ("time",), (SPEED,))
