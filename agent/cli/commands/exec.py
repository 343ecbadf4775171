"""`muster exec`: a command in a rank."""

import os
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed, Exit, StdoutFailed
from muster.agent.cli.parameters import DURATION, WHOLE, Parsed, pair
from muster.agent.cli.printing import as_dict, emit, emit_json, format_option
from muster.agent.cli.terminal import Terminal, keys
from muster.agent.text import clean, table

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.v1 import exec_pb2


@click.command(
    name="exec", short_help="Run a command in a rank of a job.", context_settings={"allow_interspersed_args": False}
)
@pass_address
@click.option("-i", "--interactive", is_flag=True, help="Pass stdin to the command; otherwise its stdin is empty.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal, connected to this one.")
@click.option("-r", "--rank", metavar="RANK", type=WHOLE, help="Rank to run in; default: the first of this node.")
@click.option(
    "-e",
    "--env",
    metavar="NAME=VALUE",
    type=Parsed("variable", pair),
    multiple=True,
    help="Set a variable, over the rank's own. Repeatable.",
)
@click.option("-w", "--workdir", metavar="DIR", help="Working folder; default: the rank's.")
@click.option("--time-limit", metavar="DURATION", type=DURATION, help="End the command after this time.")
@click.option("-d", "--detach", is_flag=True, help="Print the session's id and return while it runs.")
@click.option(
    "--detach-keys",
    metavar="KEYS",
    type=Parsed("keys", keys),
    default=b"",
    help="With -t: keys that leave the session, as in ctrl-p,ctrl-q; default: none.",
)
@click.option("--attach", metavar="SESSION", help="Attach to this session; this detaches another client.")
@click.option("--list", "listing", is_flag=True, help="Show the sessions of the job, or of all jobs.")
@click.option("--end", metavar="SESSION", help="End this session.")
@format_option
@click.argument("job", metavar="[JOB]", required=False)
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def exec_(
    address: Address,
    interactive: bool,
    tty: bool,
    rank: int | None,
    env: tuple[tuple[str, str], ...],
    workdir: str | None,
    time_limit: float | None,
    detach: bool,
    detach_keys: bytes,
    attach: str | None,
    listing: bool,
    end: str | None,
    as_json: bool,
    job: str | None,
    command: tuple[str, ...],
) -> None:
    """Run a command in the environment, folder, user, limits and cgroup of a rank.

    \b
    muster exec JOB -- nvidia-smi
    muster exec -it -r 3 JOB -- bash
    muster exec --attach SESSION JOB

    A session continues without its client and without the daemon; `exec` tries for a minute to attach again. A session
    ends with its job, and after ten minutes without a client (exec.abandoned_s).

    Exit code: the command's (128+n for a signal, 126 not executable, 127 not found), 125 if muster itself failed.
    Before the command runs: 2 wrong usage, 3 no such job or session, 4 no daemon, 5 refused.
    """
    modes = [name for name, given in (("--attach", attach), ("--list", listing), ("--end", end)) if given]
    command = command[1:] if command[:1] == ("--",) else command
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)}: give only one of them")
    if modes:
        if command or tty or detach or env or workdir or rank is not None or time_limit is not None:
            raise click.UsageError(f"{modes[0]} takes neither a command nor options of a command")
        if job is None and not listing:
            raise click.UsageError(f"{modes[0]}: JOB is missing: muster exec {modes[0]} SESSION JOB")
    elif job is None or not command:
        raise click.UsageError("JOB or COMMAND is missing: muster exec [OPTIONS] JOB -- COMMAND...")
    elif command[0].startswith("-"):
        raise click.UsageError(f"{command[0]}: put options before JOB, and the command after `JOB --`")

    from muster.agent.cli.client.calls import connect, proto_duration, utf8
    from muster.v1 import exec_pb2

    named = utf8(job or "", "JOB")
    with connect(address) as connection:
        if listing:
            answer = connection.call(connection.execs.ListSessions, exec_pb2.ListSessionsRequest(job_id=named))
            emit_json(as_dict(answer)) if as_json else emit(_table(answer))
        elif end:
            request = exec_pb2.EndSessionRequest(job_id=named, session_id=utf8(end, "--end"))
            connection.call(connection.execs.EndSession, request)
        elif attach:
            first = exec_pb2.ExecAttach(job_id=named, session_id=utf8(attach, "--attach"))
            _converse(connection, exec_pb2.ExecRequest(attach=first), interactive, detach_keys)
        else:
            if tty and not interactive:
                raise click.UsageError("-t needs -i: give -it")
            terminal = Terminal()
            if tty and not detach and not terminal.there:
                raise CommandFailed("stdin is not a terminal: leave out -t", Exit.USAGE)
            variables = dict(env)
            if tty and "TERM" in os.environ:
                variables = {"TERM": os.environ["TERM"]} | variables
            rows, columns = terminal.size()
            start = exec_pb2.ExecStart(
                job_id=named,
                rank=rank,
                argv=[utf8(word, "the command") for word in command],
                tty=tty,
                stdin=interactive,
                window=exec_pb2.WindowSize(rows=rows, columns=columns) if tty else None,
                env={utf8(name, "--env"): utf8(value, "--env") for name, value in variables.items()},
                workdir=utf8(workdir or "", "--workdir"),
                detached=detach,
                time_limit=None if time_limit is None else proto_duration(time_limit),
            )
            if detach:
                _detached(connection, start, as_json)
            else:
                _converse(connection, exec_pb2.ExecRequest(start=start), interactive, detach_keys)


def _converse(connection: "DaemonConnection", first: "exec_pb2.ExecRequest", stdin: bool, typed: bytes) -> None:
    from muster.agent.cli.client import exec_client

    try:
        code = exec_client.run(connection, first, stdin=stdin, keys=typed)
    except StdoutFailed as failure:
        if failure.exit_code == Exit.PIPE_CLOSED:
            raise click.exceptions.Exit(failure.exit_code) from None
        raise CommandFailed(failure.message, Exit.MUSTER_FAILED) from None
    raise click.exceptions.Exit(code)


def _detached(connection: "DaemonConnection", start: "exec_pb2.ExecStart", as_json: bool) -> None:
    from muster.v1 import exec_pb2

    started = next(connection.stream(connection.execs.Exec, [exec_pb2.ExecRequest(start=start)])).started
    if as_json:
        emit_json(as_dict(started))
    else:
        emit(f"{started.session_id}\n")


def _table(answer: "exec_pb2.ListSessionsResponse") -> str:
    from muster.agent.cli import show

    rows = [
        [
            one.session_id,
            one.job_id,
            str(one.rank),
            str(one.pid),
            show.when(one.started_at),
            _state(one),
            clean(one.by),
            "tty" if one.tty else "-",
            one.command,
        ]
        for one in answer.sessions
    ]
    return table(["SESSION", "JOB", "RANK", "PID", "STARTED", "STATE", "BY", "TTY", "COMMAND"], rows)


def _state(session: "exec_pb2.Session") -> str:
    if session.HasField("exited"):
        return f"ended with {session.exited.exit_code}"
    return "attached" if session.attached else "detached" if session.detached else "lost"
