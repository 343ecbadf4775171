"""Why a job ended, or what is wrong with it: one page that a person who was woken by it can act on."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from muster.agent.jobs.entry import Entry
from muster.agent.why import facts as why_facts
from muster.agent.why import page
from muster.agent.why import report as why_report
from muster.agent.why.report import Report
from muster.agent.why.signatures import FOLDER

#: Fields of the report that are the page's alone.
_PAGE = frozenset({"now", "startedAt", "endOfRanks", "takeovers", "attempt", "maxRestarts"})


@dataclass(frozen=True, slots=True)
class Told:
    """A report in both its forms."""

    report: Report

    def text(self) -> str:
        """The page, ended by a newline."""
        return page.page(self.report)

    def json(self) -> str:
        """An object on one line; docs/why.md has its keys."""
        found = msgspec.to_builtins(self.report)
        return msgspec.json.encode({key: value for key, value in found.items() if key not in _PAGE}).decode()


async def report(known: why_facts.Known, entry: Entry, *, signatures: Path | None = FOLDER, stacks: str = "") -> Told:
    """The report of a job, whatever state it is in, damaged ones too. `signatures`: the folder of an operator's own;
    None: there is none. `stacks`: those that were kept of the job, as text.

    Takes some ten seconds at most, where a disk does not answer. Raises nothing but cancellation.
    """
    facts = await why_facts.gather(known, entry, signatures)
    return Told(why_report.made(facts, known.root, stacks))
