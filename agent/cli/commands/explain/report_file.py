"""`muster report`: one file about a job, to look at and to pass on."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.client.patience import within
from muster.agent.cli.exits import CommandFailed, Exit, NoDaemon
from muster.agent.cli.printing import emit, note, yaml_text
from muster.agent.text import clean

if TYPE_CHECKING:
    from muster.agent.cli.client.knowing import JobPlace
    from muster.agent.jobs.entry import Entry
    from muster.agent.report.job_report import JobReport

T = TypeVar("T")

#: Seconds that the disk has for the first answer.
DISK_S = 10.0

#: What `-o` takes as a format; it takes anything else as a file.
FORMATS = ("html", "md", "json", "yaml")


@click.command()
@pass_address
@click.argument("jobs", metavar="[JOB]", nargs=-1)
@click.option("--node", "of_node", is_flag=True, help="Report this node in place of a job: its last three days.")
@click.option(
    "--merge",
    is_flag=True,
    help="Of a job on several nodes: make one report of these files, one of each node: --merge A.json B.json. "
    "`muster report JOB -o FILE.json` makes them.",
)
@click.option(
    "--hosts",
    metavar="A,B",
    help="Of a job on several nodes: ask these daemons, named as for `muster run --hosts`, and make one report.",
)
@click.option("--hosts-file", metavar="FILE", help="The same from a file with one host per line.")
@click.option(
    "-o",
    "--output",
    metavar="FILE|FORMAT",
    help="Write FILE, whose suffix chooses the format: .html, .md, .json, .yaml; or print a FORMAT: html, md, json, "
    "yaml.  [default: JOB-report.html]",
)
def report(
    address: Address,
    jobs: tuple[str, ...],
    of_node: bool,
    merge: bool,
    hosts: str | None,
    hosts_file: str | None,
    output: str | None,
) -> None:
    """Write one file about a job: verdict, time line, telemetry, stacks, last lines.

    With --node the file is about this node: conditions, drains, jobs over the cards, utilization, underused jobs, Xids,
    losses of the days that the history keeps (telemetry.history_days).

    JOB is a job of this node, a kept standalone run, or the folder of one. The command reads the disk and needs no
    daemon. If only musterd may read it, or musterd is on another node, the command asks the daemon. The HTML file needs
    no network. It never holds values of the environment.
    """
    form, file = _asked(output)
    several = hosts is not None or hosts_file is not None
    if of_node and (jobs or merge or several):
        raise click.UsageError("--node takes no JOB, no --merge and no --hosts")
    if merge and several:
        raise click.UsageError("--merge takes files and --hosts asks daemons: give one of them")
    if not (jobs or of_node):
        raise click.UsageError("--merge: name the files" if merge else "name a JOB, or give --node")
    if len(jobs) > 1 and not merge:
        raise click.UsageError(f"{len(jobs)} jobs: name one; --merge makes one report of several files")
    if of_node:
        text, name = _of_node(address, form)
    elif several:
        text, name = _of_hosts(hosts, hosts_file, jobs[0], form)
    else:
        text, name = _of_files(jobs, form) if merge else _of_job(address, jobs[0], form)
    if output in FORMATS:
        emit(text)
        return
    _save(file or Path(f"{name}-report.html"), text)


def _of_job(address: Address, job: str, form: str) -> tuple[str, str]:
    """The text, and the name of the job. Raises CommandFailed."""
    from muster.agent.cli.live.at_terminal import working
    from muster.agent.report import writing

    with working(f"reading what is kept of job {clean(job)}"):
        made = _from_disk(address, job) or _from_daemon(address, job)
        return yaml_text(writing.built(made)) if form == "yaml" else writing.text(made, form), made.job_id


def _from_disk(address: Address, job: str) -> "JobReport | None":
    """None: only the daemon may look. Raises CommandFailed."""
    import anyio

    from muster.agent.cli.client.knowing import on_disk
    from muster.agent.report import gathering
    from muster.agent.report import on_disk as disk

    def found() -> "tuple[JobPlace, Entry | None] | None":
        place = on_disk(address, job)
        return None if place is None else (place, disk.job(place.root, place.job_id))

    try:
        there = _read(Path(job) if os.sep in job else address.root.jobs, found)
    except disk.Forbidden as error:
        if os.sep in job:
            raise CommandFailed(f"{error}: run `muster report` as the owner of the folder") from None
        return None
    except disk.Unreadable as error:
        raise CommandFailed(str(error)) from None
    if there is None:
        return None
    place, entry = there
    if entry is None:
        raise CommandFailed(f"job {job}: no such job in {place.root.jobs}", Exit.NO_SUCH_JOB)
    return anyio.run(lambda: gathering.collect(disk.sources(place.root, place.job_id), entry, node=place.node))


def _from_daemon(address: Address, job: str) -> "JobReport":
    """Raises CommandFailed."""
    from muster.agent.cli.nodes import merged_report

    try:
        return merged_report.read(address, job)
    except NoDaemon as failure:
        if address.path is None:
            raise
        denied = f"{address.root.jobs}: permission denied: run `muster report` as the user of musterd (root)"
        raise CommandFailed(f"{denied}, or start musterd, which gives the report to you ({failure.message})") from None


def _of_hosts(hosts: str | None, hosts_file: str | None, job: str, form: str) -> tuple[str, str]:
    """The text, and the name of the job. Raises CommandFailed."""
    from muster.agent.cli.live.at_terminal import working
    from muster.agent.cli.nodes import hosts as several
    from muster.agent.cli.nodes import merged_report
    from muster.agent.report import writing

    with working(f"asking the nodes of job {clean(job)}"):
        made, failures = merged_report.of_hosts(several.read(click.get_current_context(), hosts, hosts_file), job)
        text = yaml_text(writing.built(made)) if form == "yaml" else writing.text(made, form)
    for failure in failures:
        note(f"the report lacks a node: {failure}")
    return text, made.job_id


def _of_files(files: Sequence[str], form: str) -> tuple[str, str]:
    """The text, and the name of the job. Raises CommandFailed."""
    from muster.agent.report import writing
    from muster.agent.report.several import merging

    try:
        made = merging.merged([merging.read(Path(file)) for file in files])
    except merging.NotMergeable as error:
        raise CommandFailed(f"--merge: {error}", Exit.USAGE) from None
    return yaml_text(writing.built(made)) if form == "yaml" else writing.text(made, form), made.job_id


def _of_node(address: Address, form: str) -> tuple[str, str]:
    """The text, and the name of the node. Raises CommandFailed."""
    import anyio

    from muster.agent.cli.live.at_terminal import working
    from muster.agent.report import writing
    from muster.agent.report.node import node_gathering, node_writing

    if address.path is None:
        raise CommandFailed(f"{address}: `muster report` reads the disk of its own node: run it there", Exit.USAGE)
    root = address.root
    try:
        _read(root.jobs, lambda: os.listdir(root.jobs))
    except PermissionError:
        raise CommandFailed(
            f"{root.jobs}: permission denied: run `muster report` as the user of musterd (root)"
        ) from None
    except OSError as error:
        raise CommandFailed(
            f"cannot read {root.jobs}: {error.strerror}: name the folder of a daemon with --root"
        ) from None
    with working("reading the history of the node"):
        made = anyio.run(lambda: node_gathering.collect(root))
        return yaml_text(writing.built(made)) if form == "yaml" else node_writing.text(made, form), made.node


def _read(folder: Path, function: Callable[[], T]) -> T:
    """Raises what `function` raises, and CommandFailed where the folder's disk does not answer."""
    try:
        return within(DISK_S, function)
    except TimeoutError:
        shown = "`muster why`, `muster status` and `muster node` show what the daemon knows"
        raise CommandFailed(f"{folder}: its disk has not answered for {DISK_S:g} s: try again later; {shown}") from None


def _save(file: Path, text: str) -> None:
    """Raises CommandFailed."""
    from muster.agent.report import writing

    umask = os.umask(0o077)
    os.umask(umask)
    try:
        writing.write(file, text, 0o666 & ~umask)
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror}: name another file with -o") from None
    if not writing.is_special(file):
        emit(f"{file}\n")


def _asked(output: str | None) -> tuple[str, Path | None]:
    """Format, and the file if one is named. Raises UsageError."""
    if output is None or output in FORMATS:
        return output or "html", None
    from muster.agent.report.writing import SUFFIXES

    suffix = Path(output).suffix.lower()
    form = {**SUFFIXES, ".yaml": "yaml", ".yml": "yaml"}.get(suffix)
    if form is None and os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output):
        form = "html"  # a pipe, a terminal
    if form is None:
        what = f"{suffix!r} is not a format" if suffix else "it has no suffix"
        raise click.UsageError(f"--output {output}: {what}: name a file with .html, .md, .json or .yaml, or a format")
    return form, Path(output)
