"""Writes the generated pages of docs/reference/ and the blocking client, or with --check only says which ones are not
current.

Usage: python -m scripts.make_reference [--check]
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.api.calls_page import file_name
from scripts.api.sequences_page import sequences
from scripts.api.states_page import PICTURE, job_states, picture
from scripts.blocking_client import blocking_client
from scripts.reference_checks import checks
from scripts.reference_commands import commands
from scripts.reference_errors import reasons
from scripts.reference_events import events
from scripts.reference_hang_rule import hang_rule
from scripts.reference_job_fields import job_fields
from scripts.reference_metrics import metrics
from scripts.reference_rpcs import rpcs, service_page, services
from scripts.reference_settings import settings

ROOT = Path(__file__).parents[1]
#: By their place in the repository.
FILES: dict[str, Callable[[], str]] = {
    **{f"docs/reference/api/{file_name(each.name)}": partial(service_page, each) for each in services()},
    "docs/reference/api/job-states.md": job_states,
    f"docs/reference/api/{PICTURE}": picture,
    "docs/reference/api/sequences.md": sequences,
    "docs/reference/checks.md": checks,
    "docs/reference/commands.md": commands,
    "docs/reference/errors.md": reasons,
    "docs/reference/events.md": events,
    "docs/reference/hang-rule.md": hang_rule,
    "docs/reference/job-fields.md": job_fields,
    "docs/reference/metrics.md": metrics,
    "docs/reference/rpcs.md": rpcs,
    "docs/reference/settings.md": settings,
    "proto/muster/client/blocking_client.py": blocking_client,
}


def main(check: bool) -> int:
    """Returns the exit code: 1 where a file is not current."""
    stale = []
    for name, make in FILES.items():
        path, text = ROOT / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale and check:
        print(f"make: not current: {', '.join(stale)}; run 'make docs'", file=sys.stderr)
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
