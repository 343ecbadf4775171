"""The report as one HTML file, which needs no other file and no network."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from muster.agent.report import html_parts, moments, pictures, thinning
from muster.agent.report.escaping import escaped, script_data
from muster.agent.report.job_report import Axis, JobReport, Plot

_HERE = Path(__file__).parent


@functools.cache
def _file(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def page(report: JobReport) -> str:
    """The whole file."""
    title = f"{report.job_id} {report.said.state} - muster report"
    closer = moments.enlarged(report)
    parts = [
        html_parts.header(report),
        '<main id="main">\n',
        html_parts.verdict(report),
        pictures.time_line(report),
        pictures.moment(report.moment.title, closer) if report.moment is not None and closer is not None else "",
        html_parts.checks(report),
        html_parts.stacks(report),
        html_parts.last_words(report),
        html_parts.job(report),
        html_parts.unknown(report.unknown),
        html_parts.tables(report, closer),
        "</main>\n",
        html_parts.footer(
            report.versions.get("muster", ""),
            report.made_at,
            report.axis,
            [f"muster why {report.job_id}", f"muster logs {report.job_id}"],
        ),
    ]
    data = data_of(report.axis, report.plots)
    return document(title, parts, data if closer is None else data | {"moment": data_of(closer.axis, closer.plots)})


def document(title: str, parts: Sequence[str], data: dict[str, object]) -> str:
    """A file of these parts, one of which has the id `verdict`. All is drawn without the script, too, which lets one
    point, zoom and choose in `data`."""
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # No other script runs, and nothing is loaded: not even where an escape were forgotten.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    head = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n',
        f"<title>{escaped(title)}</title>\n",
        f'<link rel="icon" href="data:,">\n<style>\n{_file("page.css")}</style>\n</head>\n',
        '<body>\n<a class="skip" href="#verdict">Skip to the verdict</a>\n',
    ]
    end = [
        f'<script type="application/json" id="data">{script_data(data)}</script>\n',
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "".join([*head, *parts, *end])


def data_of(axis: Axis, plots: Sequence[Plot]) -> dict[str, object]:
    """What the script needs: the curves behind the pictures."""
    return {"axis": [axis.begin, axis.step, axis.count, axis.zone], "plots": [_plot(one) for one in plots]}


def _plot(one: Plot) -> dict[str, object]:
    least, most = thinning.envelope([(s.least, s.most) for s in one.series])
    return {
        "name": one.name,
        "title": one.title,
        "unit": one.unit,
        "most": one.most,
        "low": least,
        "high": most,
        "mid": thinning.medians([s.mean for s in one.series]),
        "series": [[s.name, s.rank, s.card, s.odd or s.culprit, s.mean] for s in pictures.drawable(one)],
    }
