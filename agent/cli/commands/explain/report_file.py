"""`muster report`: one file about a job, to look at and to pass on."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import emit, yaml_text

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
    "-o",
    "--output",
    metavar="FILE|FORMAT",
    help="Write FILE, whose suffix chooses the format: .html, .md, .json, .yaml; or print a FORMAT: html, md, json, "
    "yaml.  [default: JOB-report.html]",
)
def report(address: Address, jobs: tuple[str, ...], of_node: bool, merge: bool, output: str | None) -> None:
    """Write one file about a job: verdict, time line, telemetry, stacks, last lines.

    With --node the file is about this node: conditions, drains, jobs over the cards, utilization, underused jobs, Xids,
    losses of the days that the history keeps (telemetry.history_days).

    JOB is a job of this node, a kept standalone run, or the folder of one. The command reads the disk and needs no
    daemon. The HTML file needs no network. It never holds values of the environment.
    """
    form, file = _asked(output)
    if of_node and (jobs or merge):
        raise click.UsageError("--node takes no JOB and no --merge")
    if not (jobs or of_node):
        raise click.UsageError("--merge: name the files" if merge else "name a JOB, or give --node")
    if len(jobs) > 1 and not merge:
        raise click.UsageError(f"{len(jobs)} jobs: name one; --merge makes one report of several files")
    if of_node:
        text, name = _of_node(address, form)
    else:
        text, name = _of_files(jobs, form) if merge else _of_job(address, jobs[0], form)
    if output in FORMATS:
        emit(text)
        return
    _save(file or Path(f"{name}-report.html"), text)


def _of_job(address: Address, job: str, form: str) -> tuple[str, str]:
    """The text, and the name of the job. Raises CommandFailed."""
    import anyio

    from muster.agent.cli.client.knowing import on_disk
    from muster.agent.report import gathering, writing
    from muster.agent.report import on_disk as disk

    place = on_disk(address, job)
    try:
        entry = disk.job(place.root, place.job_id)
    except disk.Unreadable as error:
        raise CommandFailed(str(error)) from None
    if entry is None:
        raise CommandFailed(f"job {job}: no such job in {place.root.jobs}", Exit.NO_SUCH_JOB)
    made = anyio.run(lambda: gathering.collect(disk.sources(place.root, place.job_id), entry, node=place.node))
    return yaml_text(writing.built(made)) if form == "yaml" else writing.text(made, form), place.job_id


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

    from muster.agent.report import writing
    from muster.agent.report.node import node_gathering, node_writing

    if address.path is None:
        raise CommandFailed(f"{address}: `muster report` reads the disk of its own node: run it there", Exit.USAGE)
    root = address.root
    try:
        os.listdir(root.jobs)
    except PermissionError:
        raise CommandFailed(
            f"{root.jobs}: permission denied: run `muster report` as the user of musterd (root)"
        ) from None
    except OSError as error:
        raise CommandFailed(
            f"cannot read {root.jobs}: {error.strerror}: name the folder of a daemon with --root"
        ) from None
    made = anyio.run(lambda: node_gathering.collect(root))
    return yaml_text(writing.built(made)) if form == "yaml" else node_writing.text(made, form), made.node


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
        what = f"{suffix!r} is no format" if suffix else "it has no suffix"
        raise click.UsageError(f"--output {output}: {what}: name a file with .html, .md, .json or .yaml, or a format")
    return form, Path(output)
