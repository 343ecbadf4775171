"""The report of a job as a person sees it: in Chromium, light and dark, wide and narrow, on paper, without a script."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from muster.agent.report import writing
from muster.agent.report.job_report import JobReport
from muster.agent.report.several import merging
from muster.probes import typed
from scripts import sample_reports
from tests.browser import Browser, browsing, chromium

pytestmark = pytest.mark.skipif(chromium() is None, reason="needs Chromium (apt-get install chromium)")

#: Bytes of a report of 24 hours, and seconds until it is drawn; the second limit is for defects: the page takes 0.2 s.
MOST_BYTES, DRAWN_S = 3_000_000, 60.0
CURVES = ("utilization", "memory", "power", "fabric", "cpu", "read", "written", "log")

#: The least contrast of each text with what is behind it, with the text: as WCAG computes it.
CONTRAST = """(() => {
  const parse = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  let least = [99, ""];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || element.closest("svg, script, .sr, [hidden]")) continue;
    if (!element.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, element.className + ": " + text.data.slice(0, 60)];
  }
  return least;
})()"""

#: The least contrast of what has a meaning in a picture with what is behind it: WCAG wants 3.
PICTURE_CONTRAST = """(() => {
  const light = text => {
    const [x, y, z] = text.match(/[\\d.]+/g).slice(0, 3).map(v =>
      (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const probe = document.body.appendChild(document.createElement("i"));
  const of = name => { probe.style.color = `var(--${name})`; return light(getComputedStyle(probe).color); };
  let least = [99, ""];
  const names = "edge mid odd culprit also done failed victim stopped lost running suspect hung step grave mark link";
  for (const name of names.split(" ")) for (const behind of ["bg", "soft"]) {
    const [a, b] = [of(name), of(behind)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, `${name} on ${behind}`];
  }
  probe.remove();
  return least;
})()"""
#: What has the focus: a name for it, whether one sees that it has it, and whether it is on the screen.
FOCUSED = """(() => {
  const one = document.activeElement, look = getComputedStyle(one), box = one.getBoundingClientRect();
  const seen = look.outlineStyle === "solid" && parseFloat(look.outlineWidth) >= 2;
  return [one.tagName, seen, box.bottom > 0 && box.top < innerHeight];
})()"""
#: Roles that a screen reader announces with a name, or with nothing.
NAMED = frozenset({"button", "combobox", "DisclosureTriangle", "image", "link", "region", "slider", "status", "table"})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files, by name of the sample."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for name in sample_reports.SAMPLES:
        found[name] = folder / f"{name}.html"
        found[name].write_text(anyio.run(sample_reports.made, folder / name, name), "utf-8")
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("chromium") / "profile") as made:
        yield made


@pytest.mark.parametrize("name", sample_reports.SAMPLES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.slow
def test_a_page_is_whole_quiet_and_legible(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool, width: int
) -> None:
    assert browser.show(pages[name], width, dark=dark) < DRAWN_S
    assert browser.problems() == []
    # Nothing is wider than the page.
    assert browser.value("document.documentElement.scrollWidth") == width
    ratio, text = browser.value(CONTRAST)
    assert ratio >= 4.5, text
    # Each picture has a name, a size, and a table behind it.
    assert browser.value("[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label').length > 10)")
    assert browser.value("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 200)")
    drawn = browser.value("[...document.querySelectorAll('[data-plot]')].map(p => p.dataset.plot)")
    again = [f"moment-{curve}" for curve in CURVES] if name == "overnight" else []
    assert drawn == [*CURVES, *again]
    # No last cell of a table is so narrow that it stands upright.
    cells = "[...document.querySelectorAll('details[open] td:last-child')].filter(c => c.innerText.length > 4)"
    assert browser.value(f"{cells}.every(c => c.clientWidth > c.clientHeight)")
    # And of a table with sentences no cell is beside the screen.
    cells = "[...document.querySelectorAll('details[open] .sentences td')]"
    assert browser.value(f"{cells}.every(c => c.getBoundingClientRect().right <= innerWidth)")
    for curve in drawn:
        assert browser.value(f"document.querySelectorAll('#t-{curve} table').length") == 2
    assert browser.value("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == browser.value(
        "document.querySelectorAll('[id]').length"
    )


def _text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"document.querySelector({json.dumps(selector)}).innerText"))


def _box(browser: Browser, selector: str) -> dict[str, float]:
    found = browser.value(
        f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        "return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
    )
    assert isinstance(found, dict)
    return found


def test_a_failed_job_begins_with_the_verdict_and_shows_the_culprit(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["failed"])
    assert _text(browser, "h1") == "llama-7b-pretrain FAILED"
    assert _text(browser, ".headline") == "rank 3 (device 3) exited with code 1; 7 other ranks were stopped"
    assert "RETRY_ELSEWHERE: a card of the job has a fault" in _text(browser, ".advice")
    sections = browser.value("[...document.querySelectorAll('main section')].map(s => s.id)")
    assert sections == ["verdict", "time", "checks", "last", "job", "tables"]
    assert _text(browser, ".lane.curve .key") == "card 3 (rank 3) stands out"
    assert browser.value("document.querySelectorAll('[data-plot=utilization] .odd').length") == 1
    assert browser.value("document.querySelectorAll('.rows .bar.failed').length") == 1
    assert browser.value("document.querySelectorAll('.rows .bar.victim').length") == 7
    assert browser.value("document.querySelectorAll('.mark, .grave').length") == 12
    assert "unspecified launch failure" in _text(browser, "#last pre")
    assert "Xid 79" in _text(browser, "#t-node")
    assert re.search(r"\tthe job is being ended: ", _text(browser, "#t-events"))
    assert "Reboot; if it happens again" in _text(browser, "#verdict ol")
    # What it took of the cards; and when the page was made, which may be long after.
    assert _text(browser, ".facts > :last-child") == "card hours\n6.69, 89 % utilization"
    assert re.search(r" at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, times are UTC", _text(browser, "footer"))


def test_the_last_minutes_of_a_long_job_are_drawn_once_more(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["overnight"])
    sections = browser.value("[...document.querySelectorAll('main section')].map(s => s.id)")
    assert sections[:3] == ["verdict", "time", "moment"]
    assert _text(browser, "#h-moment") == "Around the end of rank 3"
    # In eleven hours the last minute is less than a step; here the card that fell off the bus stands out.
    axis = "JSON.parse(document.getElementById('data').textContent){}.axis"
    whole, near = browser.value(axis.format("")), browser.value(axis.format(".moment"))
    assert whole[1] > 50 > near[1] * 10
    odd = "document.querySelectorAll('#{} [data-plot$=utilization] .odd').length"
    assert browser.value(odd.format("time")) == 0 and browser.value(odd.format("moment")) == 1
    assert "card 3 (rank 3) stands out: 0 % at the end" in _text(browser, "#moment .lane.curve .name")
    assert browser.value("document.querySelectorAll('#moment .rows .bar.failed').length") == 1
    # What is zoomed is its own.
    view = "document.querySelector('#{} [data-plot$=power] svg').getAttribute('viewBox').split(' ').map(Number)[2]"
    before = browser.value(view.format("time"))
    browser.value("document.querySelector('#moment [data-do=in]').click()")
    assert browser.value(view.format("moment")) == near[2] / 2 and browser.value(view.format("time")) == before
    browser.value("document.querySelector('.to-table[href=\"#t-moment-power\"]').click()")
    assert browser.value("document.getElementById('t-moment-power').open")
    assert browser.problems() == []


def test_a_merged_report_has_that_time_of_all_nodes(tmp_path: Path) -> None:
    one = typed.decode(anyio.run(sample_reports.made, tmp_path, "overnight", "json"), JobReport)
    assert one.moment is not None
    short = msgspec.structs.replace(one, node="node-19", node_rank=2, moment=None)
    found = merging.merged([one, msgspec.structs.replace(one, node="node-18", node_rank=1), short])
    assert found.moment is not None and found.moment.axis == one.moment.axis
    assert found.moment.title == "Around the end of rank 3 on node-17"
    names = [series.name for series in found.moment.plots[0].series]
    assert len(names) == 16 and names[0].startswith("node-17: ") and names[15].startswith("node-18: ")
    assert 'id="moment"' in writing.text(found, writing.HTML)


def test_bars_and_curves_stand_where_they_belong_on_one_axis(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["restarted"])
    places = "[...document.querySelectorAll('.plot')].map(p => p.getBoundingClientRect()).map(b => [b.x, b.width])"
    assert len({tuple(one) for one in browser.value(places)}) == 1  # one axis
    bars = browser.value("[...document.querySelectorAll('.lane.thin')][0].querySelectorAll('.bar').length")
    assert bars == 3
    # Times of the head say which attempt they are of; the cards were held by all three.
    facts = _text(browser, ".facts").split("\n")
    assert "attempt 2 ran for" in facts and "ran for" not in facts
    assert facts[facts.index("card hours") + 1] == "3.58, 1.92 of them in attempts that failed, 89 % utilization"
    assert browser.value("document.querySelectorAll('.rows .bar').length") == 12
    # The pause of five minutes in the readings is a gap: the median has two parts.
    path = browser.value("document.querySelector('[data-plot=utilization] .mid').getAttribute('d')")
    assert path.count("M") == 2
    before, after = (re.findall(r"[\d.]+", part) for part in path.split("M")[1:])
    begin, end = float(before[-2]), float(after[0])
    step = browser.value("JSON.parse(document.getElementById('data').textContent).axis[1]")
    assert abs((end - begin) * step - 300) <= 3 * step


@pytest.mark.parametrize("width", [360, 760, 1000, 1280])
@pytest.mark.parametrize("name", ["restarted", "day", "hostile"])
def test_times_on_the_axis_are_whole_and_apart(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.show(pages[name], width)
    ticks = "[...document.querySelectorAll('.axis')].map(axis => [...axis.querySelectorAll('.tick')].map({}))"
    # The script draws what stands in the file.
    drawn = browser.value(ticks.format("t => [t.className, t.textContent, parseFloat(t.style.left)]"))
    assert len(drawn) >= 3 and all(axis == drawn[0] for axis in drawn)
    written = re.findall(r'<span class="(tick[^"]*)" style="left:([\d.]+)%"><span>([^<]*)<', pages[name].read_text())
    assert drawn[0] == [
        [look, text, pytest.approx(float(left), abs=0.02)] for look, left, text in written[: len(drawn[0])]
    ]
    seen = "getComputedStyle(t.firstChild).visibility === 'visible'"
    place = "(box => [box.left, box.right])(t.firstChild.getBoundingClientRect())"
    shown = browser.value(ticks.format(f"t => {seen} ? {place} : null"))
    right = browser.value("document.querySelector('.axis .plot').getBoundingClientRect().right")
    for axis in shown:
        texts = [one for one in axis if one]
        assert len(texts) >= 2
        assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(texts))
        assert texts[-1][1] <= right


def test_a_hung_job_shows_when_it_hung_and_where(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["hung"])
    assert browser.value("[...document.querySelectorAll('.lane .bar.suspect, .lane .bar.hung')].length") >= 3
    assert browser.value("document.querySelectorAll('[data-plot=cpu] .shade').length") == 2
    assert "card 5 (rank 5) stands out: 0 % at the end, the others 100 %" in _text(browser, ".lane.curve .name")
    first = _text(browser, "#stacks pre")
    assert "data/shards.py:51" in first  # the odd one
    assert _text(browser, "#stacks h3") == "rank 5: 1 of 8 processes"


def test_a_day_is_small_and_keeps_least_and_most(browser: Browser, pages: dict[str, Path]) -> None:
    assert pages["day"].stat().st_size < MOST_BYTES
    assert browser.show(pages["day"]) < DRAWN_S
    data = browser.value("JSON.parse(document.getElementById('data').textContent)")
    assert data["axis"][2] <= 481
    written = next(one for one in data["plots"] if one["name"] == "written")
    # Rank 0 saves for 25 s each ten minutes: the mean of a step hides that, its most does not.
    assert max(value for value in written["high"] if value is not None) == 900
    assert len(written["series"]) == 64
    used = next(one for one in data["plots"] if one["name"] == "utilization")
    assert [series[0] for series in used["series"] if series[3]] == ["card 6 (rank 6)"]
    assert None in used["mid"]  # the hour without readings


def test_values_are_read_zoomed_and_chosen_with_mouse_and_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["failed"], 1280, 3000)
    box = _box(browser, "[data-plot=utilization]")
    browser.mouse("mouseMoved", box["x"] + box["width"] * 0.995, box["y"] + 20)
    assert "card 3 (rank 3) 0" in _text(browser, ".lane.curve .now")
    assert re.fullmatch(r"at 08:(49:5|50:)\d+", _text(browser, "#readout"))
    count = browser.value("JSON.parse(document.getElementById('data').textContent).axis[2]")
    view = "document.querySelector('[data-plot=power] svg').getAttribute('viewBox').split(' ').map(Number)"
    # Drag over the last tenth.
    for kind, place in (("mousePressed", 0.9), ("mouseMoved", 0.95), ("mouseMoved", 1.0), ("mouseReleased", 1.0)):
        browser.mouse(kind, box["x"] + box["width"] * place, box["y"] + 20)
    left, _, width, _ = browser.value(view)
    assert left == pytest.approx(count * 0.9, abs=1) and width == pytest.approx(count * 0.1, abs=1)
    ticks = browser.value("[...document.querySelectorAll('.axis .tick')].map(t => t.textContent)")
    assert ticks and all(tick.startswith(("08:4", "08:5")) for tick in ticks)
    browser.value("document.getElementById('chart').focus()")
    browser.key("0", "0")
    assert browser.value(view)[2] == count
    browser.key("+", "+")
    assert browser.value(view)[2] == count / 2
    browser.key("Home")
    assert "Utilization" in _text(browser, "#readout")
    # A slider for a finger and for a screen reader, which says its value.
    move = (
        "s => { s.value = s.max * 0.99; s.dispatchEvent(new Event('input')); return s.getAttribute('aria-valuetext'); }"
    )
    said = browser.value(f"({move})(document.getElementById('at'))")
    assert said.startswith("at 08:4") and "card 3 (rank 3) 0" in said and "CPU" in said
    browser.value("document.getElementById('chart').focus()")
    browser.key("Home")
    choose = "s => { s.value = 'r6'; s.dispatchEvent(new Event('change')); }"
    browser.value(f"({choose})(document.getElementById('also'))")
    assert browser.value("document.querySelectorAll('.also').length") == len(CURVES)
    browser.value("document.getElementById('chart').focus()")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    beside = "document.querySelector('[data-plot=cpu]').previousElementSibling.innerText"
    assert "rank 6" in browser.value(beside)
    browser.value("document.querySelector('.to-table[href=\"#t-cpu\"]').click()")
    assert browser.value("document.getElementById('t-cpu').open")
    assert browser.problems() == []


def test_without_a_script_the_pictures_and_tables_remain(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["hung"], script=False)
    tree = browser.call("DOM.getDocument")["root"]["nodeId"]

    def found(selector: str) -> list[int]:
        nodes: list[int] = browser.call("DOM.querySelectorAll", nodeId=tree, selector=selector)["nodeIds"]
        return nodes

    assert len(found("[data-plot] .mid")) == len(CURVES)
    assert found(".tick") and found("#tables table")
    # The buttons would do nothing: they are not there.
    with pytest.raises(RuntimeError):
        browser.call("DOM.getBoxModel", nodeId=found("#controls")[0])
    height = browser.call("DOM.getBoxModel", nodeId=found("[data-plot=power] svg")[0])["model"]["height"]
    assert height > 50
    browser.show(pages["hung"])


def test_a_hostile_job_can_do_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    source = pages["hostile"].read_text("utf-8")
    assert "secret-value" not in source and "T0KEN" not in source
    browser.show(pages["hostile"])
    assert browser.problems() == []
    assert browser.value("document.title") == "hostile FAILED - muster report"
    assert browser.value("document.querySelectorAll('script').length") == 2
    assert browser.value("document.querySelectorAll('img, iframe, object, a[href^=javascript], main b b').length") == 0
    shown = _text(browser, "#last")
    assert "</script><script>document.title='pwned'</script>" in shown
    assert "\\x00 NUL" in shown and "\x1b" not in shown and "\u202e" not in shown
    assert "\\u202egnp.exe" in shown
    assert max(map(len, shown.splitlines())) < 400
    # And if something were missed: the page's policy lets no other script run.
    more = "s => { s.textContent = 'document.title = 1'; document.body.append(s); }"
    browser.value(f"({more})(document.createElement('script'))")
    assert browser.value("document.title") == "hostile FAILED - muster report"


@pytest.mark.parametrize("form", ["md", "json"])
def test_a_hostile_job_can_do_nothing_in_other_formats(tmp_path: Path, form: str) -> None:
    text = anyio.run(sample_reports.made, tmp_path, "hostile", form)
    assert "secret-value" not in text and "T0KEN" not in text
    assert not set(text) & set("\0\x1b\u202e\x9b\x08")
    if form == "json":
        assert json.loads(text)["lastWords"]["lines"][0] == sample_reports.HOSTILE[0]
    else:
        # Outside blocks of code nothing is markup: what looks like it is behind a backslash.
        outside = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", text)
        assert not re.search(r"(?<!\\)<(?!!DOCTYPE)", outside)
        assert not re.search(r"(?<!\\)\]\(", outside)


@pytest.mark.parametrize("name", ["healthy", "failed", "hung", "restarted", "hostile"])
def test_no_value_of_the_environment_is_in_a_page(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text("utf-8")
    assert "hunter2" not in text and "secret-value" not in text
    assert "variables, values hidden" in text


def test_a_page_can_be_printed(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["hung"], dark=True)
    paper = browser.paper()
    assert paper.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 10
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=scheme)
    try:
        assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ratio, text = browser.value(CONTRAST)
        assert ratio >= 4.5, text
        assert browser.value("getComputedStyle(document.getElementById('controls')).display") == "none"
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


def test_colours_differ_in_lightness_too(browser: Browser, pages: dict[str, Path]) -> None:
    """What a person sees who sees no colours: a failed rank, its victims and one that ended well."""
    browser.show(pages["failed"])
    told = "n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()"
    looks = browser.value(f"['failed', 'victim', 'done', 'hung'].map({told})")
    colours = [bytes.fromhex(look[1:]) for look in looks]
    grey = [0.3 * red + 0.59 * green + 0.11 * blue for red, green, blue in colours]
    failed, victim, done, hung = grey
    assert min(abs(failed - victim), abs(failed - done), abs(failed - hung)) > 20


def accessible(browser: Browser) -> None:
    """A screen reader and a keyboard get to all that the page, which is shown, has."""
    levels = browser.value("[...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    # Each picture has a table behind it, to which a link beside it leads.
    pictures = "[...document.querySelectorAll('.lane:not(.axis)')]"
    there = "document.querySelector(l.querySelector('.to-table').hash + ' table') !== null"
    tables = f"{pictures}.map(l => [l.innerText, {there}])"
    assert [text for text, there in browser.value(tables) if not there] == []
    unnamed, found = [], set()
    browser.call("Accessibility.enable")
    for node in browser.call("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value")
        if not node["ignored"] and role in NAMED:
            found.add(role)
            unnamed += [node] if not node.get("name", {}).get("value", "").strip() else []
    browser.call("Accessibility.disable")
    assert unnamed == [] and found == NAMED
    # The key Tab goes once over all of them.
    hidden = "one.closest('[hidden], details:not([open]) > :not(summary)')"
    reached = "'a[href], button, select, input, summary, [tabindex]'"
    count = browser.value(f"[...document.querySelectorAll({reached})].filter(one => !{hidden}).length")
    for _ in range(count):
        browser.key("Tab")
        tag, seen, on_screen = browser.value(FOCUSED)
        assert tag != "BODY" and seen and on_screen, browser.value("document.activeElement.outerHTML.slice(0, 200)")
    browser.key("Tab")  # the browser begins anew, with a pause or without one
    assert browser.value("document.activeElement.matches('body, .skip')")


@pytest.mark.parametrize("name", ["hung", "overnight"])
def test_a_screen_reader_and_a_keyboard_reach_all(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.show(pages[name])
    accessible(browser)
    # What has the focus is used with Enter.
    browser.value("document.querySelector('.to-table[href=\"#t-bars\"]').focus()")
    browser.key("Enter", "\r")
    assert browser.value("document.getElementById('t-bars').open && location.hash") == "#t-bars"
    browser.value("document.querySelector('#t-ranks summary').focus()")
    browser.key("Enter", "\r")
    assert browser.value("document.getElementById('t-ranks').open")
    browser.value("document.querySelector('[data-do=in]').focus()")
    browser.key("Enter", "\r")
    count = browser.value("JSON.parse(document.getElementById('data').textContent).axis[2]")
    view = "document.querySelector('[data-plot=power] svg').getAttribute('viewBox').split(' ').map(Number)[2]"
    assert browser.value(view) == count / 2
    assert browser.problems() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_is_drawn_stands_out_from_what_is_behind_it(browser: Browser, pages: dict[str, Path], dark: bool) -> None:
    browser.show(pages["healthy"], dark=dark)
    ratio, which = browser.value(PICTURE_CONTRAST)
    assert ratio >= 3, which


@pytest.mark.slow
def test_three_days_of_a_node_show_its_jobs_over_the_cards_and_what_was_wrong(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("days")
    page = folder / "node.html"
    page.write_text(anyio.run(sample_reports.made_of_node, folder / "n"), "utf-8")
    for width, dark in ((1280, False), (360, True)):
        assert browser.show(page, width, dark=dark) < DRAWN_S
        assert browser.problems() == [] and browser.value("document.title") == "node node-17 - muster report"
        assert browser.value("document.documentElement.scrollWidth") == width
        ratio, text = browser.value(CONTRAST)
        assert ratio >= 4.5, text
    browser.show(page)
    accessible(browser)
    headline = "1 condition now, 1 of them critical; 5 jobs in 3 days, 1 of them failed; 2 with underused cards"
    assert _text(browser, ".headline") == headline
    # A bar for each job and card: that of the failed job on all of them, the others beside and behind each other.
    bars = browser.value("[...document.querySelectorAll('.gantt .bar')].map(b => b.getAttribute('class'))")
    assert sorted(bars) == ["bar done"] * 6 + ["bar failed"] * 8 + ["bar running"] * 2 + ["bar stopped"] * 2
    assert browser.value("[...document.querySelectorAll('.side')].map(s => s.innerText).join('')") == "01234567"
    names = browser.value("[...document.querySelectorAll('.gantt .in')].map(s => s.innerText)")
    assert names[0] == "llama-7b-pretrain" and {"finetune-a", "notebook"} <= set(names)
    lanes = browser.value("[...document.querySelectorAll('.lane h3')].map(h => h.firstChild.textContent.trim())")
    assert lanes[:5] == ["Drained", "No daemon", "Conditions", "Jobs", "Reports and losses"]
    assert browser.value("document.querySelectorAll('[data-plot]').length") == 6
    rows = "[...document.querySelectorAll('#t-{} tbody tr')].map(r => r.innerText.split('\\t'))"
    assert [row[:4] for row in browser.value(rows.format("underused"))] == [
        ["notebook", "7 %", "33.5", "17h59m"], ["eval", "21 %", "7.9", "4h59m"],
    ]  # fmt: skip
    assert [row[:4] for row in browser.value(rows.format("counts"))] == [
        ["GPU_OFF_BUS", "79", "card 3", "1"], ["GPU_XID_OTHER", "31", "card 1", "3"],
    ]  # fmt: skip
    assert "1048576 bytes lost" in _text(browser, "#t-losses") and "bob drained the node: <img" in _text(
        browser, "#t-drains"
    )
    browser.show(page, script=False)
    assert browser.value("document.querySelectorAll('.gantt .bar').length") == 18
