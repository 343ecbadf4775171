"""Takes pictures of `muster report` in headless Chromium: a failed and a hung job, down to the first plots.

Usage: python -m scripts.documentation.report_pictures [--into FOLDER]

The jobs are those of `scripts.sample_reports`: 8 cards, with readings through the real recorder.
"""

import argparse
import base64
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import structlog

from scripts.documentation.recordings import PICTURES
from scripts.sample_reports import made
from tests.browser import browsing, chromium

#: By the picture's name: the sample.
REPORTS = {"report-failed": "failed", "report-hung": "hung"}
WIDTH, HEIGHT = 1000, 1660


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.documentation.report_pictures")
    parser.add_argument("--into", type=Path, default=PICTURES, metavar="FOLDER")
    args = parser.parse_args(argv)
    if chromium() is None:
        print("chromium is not installed: apt install chromium", file=sys.stderr)
        return 1
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    args.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder) / "profile") as browser:
        for name, sample in REPORTS.items():
            page = Path(folder) / f"{name}.html"
            page.write_text(anyio.run(made, Path(folder) / sample, sample), encoding="utf-8")
            browser.show(page, WIDTH, HEIGHT)
            shot = browser.call("Page.captureScreenshot", format="png")["data"]
            path = args.into / f"{name}.png"
            path.write_bytes(base64.b64decode(shot))
            print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
