"""The report as one HTML file, which needs no other file and no network."""

import base64
import functools
import hashlib
from pathlib import Path

from muster.agent.report import html_parts, pictures, thinning
from muster.agent.report.escaping import escaped, script_data
from muster.agent.report.job_report import JobReport, Plot

_HERE = Path(__file__).parent


@functools.cache
def _file(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def page(report: JobReport) -> str:
    """The whole file. Everything in it is drawn without the script, too, which lets one point, zoom and choose."""
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # No other script runs, and nothing is loaded: not even where an escape were forgotten.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    title = escaped(f"{report.job_id} {report.said.state} - muster report")
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n',
        f'<title>{title}</title>\n<link rel="icon" href="data:,">\n<style>\n{_file("page.css")}</style>\n</head>\n',
        '<body>\n<a class="skip" href="#verdict">Skip to the verdict</a>\n',
        html_parts.header(report),
        '<main id="main">\n',
        html_parts.verdict(report),
        pictures.time_line(report),
        html_parts.tables(report),
        html_parts.checks(report),
        html_parts.stacks(report),
        html_parts.last_words(report),
        html_parts.job(report),
        html_parts.unknown(report),
        "</main>\n",
        html_parts.footer(report),
        f'<script type="application/json" id="data">{script_data(_data(report))}</script>\n',
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "".join(parts)


def _data(report: JobReport) -> dict[str, object]:
    """What the script needs: the curves behind the pictures."""
    axis = report.axis
    return {
        "axis": [axis.begin, axis.step, axis.count, axis.zone],
        "plots": [_plot(one) for one in report.plots],
    }


def _plot(one: Plot) -> dict[str, object]:
    least, most = thinning.envelope([(s.least, s.most) for s in one.series])
    return {
        "name": one.name,
        "unit": one.unit,
        "most": one.most,
        "low": least,
        "high": most,
        "mid": thinning.medians([s.mean for s in one.series]),
        "series": [[s.name, s.rank, s.card, s.odd or s.culprit, s.mean] for s in pictures.drawable(one)],
    }
