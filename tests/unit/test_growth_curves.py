"""How steep a curve is said to be, its picture, and that the processes of a point end."""

import xml.etree.ElementTree as ET

import psutil
import pytest

from benchmarks.growth import curves
from benchmarks.growth.curve import STEEP, Found, Skipped, exponents
from benchmarks.growth.picture import draw


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_curve_with_a_large_constant(exponent: float) -> None:
    found = [Found(x, {"line": 1000 + 3 * (x - 1) ** exponent}) for x in (1, 4, 16, 64, 256)]
    _, above = exponents(found, "line")
    assert above == pytest.approx(exponent, abs=0.01)
    assert (above > STEEP) == (exponent > STEEP)


def test_what_does_not_grow_or_cannot_be_known_is_flat() -> None:
    assert exponents([Found(x, {"line": 5.0}) for x in (1, 10, 100)], "line") == pytest.approx((0, 0))
    assert exponents([Found(1, {"line": 5.0})], "line") == (0, 0)


def test_a_picture_has_each_line_and_each_point_that_is_above_zero() -> None:
    found = [Found(x, {"a <s>": x * 0.5, "b": x - 1.0}) for x in (1, 10, 100)]
    root = ET.fromstring(draw("50 % & more", "ranks", found))
    spaced = "{http://www.w3.org/2000/svg}"
    points = [len((line.get("points") or "").split()) for line in root.iter(f"{spaced}polyline")]
    assert points == [3, 2]
    texts = {text.text for text in root.iter(f"{spaced}text")}
    assert texts >= {"a <s>", "b", "ranks", "1", "10", "100"}


def test_the_sleeping_processes_end_with_their_point() -> None:
    with curves.sleepers(5):
        [parent] = [one for one in psutil.Process().children() if len(one.children()) == 5]
        sleeping = [parent, *parent.children()]
    _, alive = psutil.wait_procs(sleeping, 30)
    assert not alive
    with pytest.raises(Skipped, match="pid_max"), curves.sleepers(1 << 40):
        pass
