"""`muster why`: one page about why a job ended, or what is wrong with it."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import coloured, emit, emit_json, format_option, note
from muster.agent.text import table

if TYPE_CHECKING:
    from muster.agent.why.signatures import Signature, Table

#: Seconds that a report may take: the daemon waits for disks that do not answer.
REPORT_S = 60.0
#: Bytes of the end of a log that `--try` searches, and seconds that this may take.
TRIED_BYTES, TRIED_S = 64 << 20, 60.0


@click.command()
@pass_address
@click.argument("job", metavar="JOB", required=False)
@click.option(
    "--try",
    "signatures",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Check a file of signatures, without a daemon. With a log in place of JOB, show what muster would find in it; "
    "- is standard input.",
)
@click.option(
    "--hosts",
    metavar="A,B",
    help="Of a job on several nodes: ask these daemons, named as for `muster run --hosts`, and show which rank on "
    "which node failed first.",
)
@click.option("--hosts-file", metavar="FILE", help="The same from a file with one host per line.")
@format_option
def why(
    address: Address, job: str | None, signatures: str | None, hosts: str | None, hosts_file: str | None, as_json: bool
) -> None:
    """Show why a job ended, with evidence and remedy; of a running job, show what is wrong.

    --try checks signatures of your own before you put them into /etc/muster/signatures.d.

    Exit code: 0, or 1 if a signature in FILE is wrong.
    """
    if signatures is not None:
        _try(Path(signatures), job, as_json)
        return
    if job is None:
        raise click.MissingParameter(param_hint="'JOB'", param_type="argument")
    from muster.agent.cli.client.calls import connect, utf8

    if hosts is not None or hosts_file is not None:
        _of_several(utf8(job, "JOB"), hosts, hosts_file, as_json)
        return
    from muster.agent.cli.client.knowing import knowing
    from muster.v1 import job_pb2

    request = job_pb2.GetReportRequest(job_id=utf8(job, "JOB"), color=coloured() and not as_json)
    with knowing(address, job) as where, connect(where) as connection:
        answer = connection.call(connection.jobs.GetReport, request, REPORT_S)
    if as_json:
        emit_json(json.loads(answer.json))
    else:
        emit(answer.text)


def _of_several(job: str, hosts: str | None, hosts_file: str | None, as_json: bool) -> None:
    from muster.agent.cli.nodes import hosts as several
    from muster.agent.cli.nodes import merged_why

    found = merged_why.collect(
        several.read(click.get_current_context(), hosts, hosts_file), job, colour=coloured() and not as_json
    )
    if as_json:
        emit_json(merged_why.as_json(found))
    else:
        emit(merged_why.page(found))


def _try(file: Path, log: str | None, as_json: bool) -> None:
    from muster.agent.why.signatures import load_file

    own = load_file(file)
    for problem in own.problems:
        note(problem)
    if log is not None:
        _show(own, _end_of(log), as_json)
    elif as_json:
        emit_json({"signatures": [one.id for one in own.signatures], "problems": own.problems})
    elif own.rows:
        emit(table(["SIGNATURE", "KIND", "ROLE", "PRIORITY"], [_row(one) for one in own.signatures]))
    elif not own.problems:
        note(f"{file} has no signatures: each begins with the line [[signature]]")
    if own.problems:
        raise click.exceptions.Exit(Exit.FAILURE)


def _show(own: "Table", text: bytes, as_json: bool) -> None:
    """What a log shows, by these signatures and muster's own."""
    from muster.agent.why.log_stretch import without_escapes
    from muster.agent.why.signatures import scan, with_own

    text = without_escapes(text).data
    found = scan(text, with_own(own), until=time.monotonic() + TRIED_S)
    if not found.whole:
        note(f"muster searched only a part of the log: the search took over {TRIED_S:g} s")
    mine = {one.id for one in own.signatures}
    hits = [(text.count(b"\n", 0, hit.at) + 1, hit) for hit in found.hits]
    if as_json:
        for number, hit in hits:
            one = hit.signature
            shown = {"line": number, "signature": one.id, "own": one.id in mine, "kind": one.kind, "role": one.role}
            emit_json(shown | {"priority": one.priority, "text": hit.line}, line=True)
        return
    if not hits:
        note("no signature matches a line of the log")
        return
    rows = [[str(number), *_row(hit.signature), "FILE" if hit.signature.id in mine else "muster", hit.line[:100]]
            for number, hit in hits]  # fmt: skip
    emit(table(["LINE", "SIGNATURE", "KIND", "ROLE", "PRIORITY", "OF", "TEXT"], rows))


def _row(one: "Signature") -> list[str]:
    return [one.id, one.kind, one.role, str(one.priority)]


def _end_of(log: str) -> bytes:
    """Raises CommandFailed."""
    try:
        with open(0 if log == "-" else log, "rb", closefd=log != "-") as file:
            if file.seekable():
                file.seek(max(0, file.seek(0, 2) - TRIED_BYTES))
            return file.read(TRIED_BYTES)
    except OSError as error:
        raise CommandFailed(f"{log}: cannot be read: {error.strerror}", Exit.USAGE) from None
