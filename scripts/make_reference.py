"""Writes the generated pages of docs/reference/, or with --check only says which ones are not current.

Usage: python -m scripts.make_reference [--check]
"""

import sys
from collections.abc import Callable
from pathlib import Path

from scripts.reference_checks import checks
from scripts.reference_commands import commands
from scripts.reference_errors import reasons
from scripts.reference_events import events
from scripts.reference_hang_rule import hang_rule
from scripts.reference_job_fields import job_fields
from scripts.reference_metrics import metrics
from scripts.reference_rpcs import rpcs
from scripts.reference_settings import settings

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "checks.md": checks,
    "commands.md": commands,
    "errors.md": reasons,
    "events.md": events,
    "hang-rule.md": hang_rule,
    "job-fields.md": job_fields,
    "metrics.md": metrics,
    "rpcs.md": rpcs,
    "settings.md": settings,
}


def main(check: bool) -> int:
    """Returns the exit code: 1 where a page is not current."""
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"docs/reference/{name}")
        if not check:
            path.write_text(text, encoding="utf-8")
    if stale and check:
        print(f"make: not current: {', '.join(stale)}; run 'make docs'", file=sys.stderr)
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
