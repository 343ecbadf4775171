"""The documentation as a web site: built in strict mode, opened from a folder in Chromium without a network."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.browser import browsing, chromium
from tests.conftest import eventually

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-site/bin/python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="MkDocs is not installed: make site"),
]
#: What a browser fetches by itself.
LOADS = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon))[^>]*\bhref=[\"']?(?:https?:)?//"
)
PAGES = ("index.html", "get-started.html", "guides/migrate/from-torchrun.html", "reference/settings.html")


def built(*options: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-m", "mkdocs", "build", *options]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)


def test_the_site_opens_from_a_folder_without_a_network(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = built("-d", site)
    assert build.returncode == 0, build.stdout + build.stderr
    listed = re.findall(r"\]\(([\w/-]+)\.md\)", (ROOT / "docs/README.md").read_text())
    assert len(listed) > 50
    assert [page for page in listed if not (site / f"{page}.html").exists()] == []
    assert (site / "repository/systemd/index.html").exists()
    assert {str(page.relative_to(site)) for page in site.rglob("*.html") if LOADS.search(page.read_text())} == set()
    if chromium() is None:
        pytest.skip("chromium is not installed")
    with browsing(tmp_path / "profile") as browser:
        for page in PAGES:
            browser.show(site / page, 360, 800)
            assert browser.problems() == [], page
            assert browser.value("document.documentElement.scrollWidth") <= 360, page
        found = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.pathname)"
        # Many words begin with `node` and end in digits.
        for word, page in (("drain", "guides/drain.html"), ("node", "reference/api/node-service.html")):
            browser.show(site / "index.html")
            browser.value("document.querySelector('.md-search__input').focus()")
            for letter in word:
                browser.key(letter, letter)
            links = eventually(lambda: browser.value(found), message="results of the search")
            assert any(link.endswith(page) for link in links), (word, links)
            assert browser.problems() == []


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("# A\n\n[nothing](none.md)\n")
    (tmp_path / "docs/get-started.md").write_text("# B\n")
    config = (ROOT / "mkdocs.yml").read_text().replace("scripts/", f"{ROOT}/scripts/")
    (tmp_path / "mkdocs.yml").write_text(config)
    build = built(cwd=tmp_path)
    assert build.returncode and "none.md" in build.stderr
