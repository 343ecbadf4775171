"""`muster check`: is this node fit?"""

from functools import partial
from pathlib import Path

import click

from agent.cli.address import address_options, named_root
from agent.cli.errors import Exit, Failure
from agent.cli.output import emit, emit_json, format_option
from agent.cli.text import table


@click.command()
@address_options
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("--list", "only_list", is_flag=True, help="Show which checks there are.")
@click.option("--config", "file", metavar="FILE", help="Take the thresholds from this file instead of musterd's own.")
@format_option
@click.pass_context
def check(context: click.Context, items: tuple[str, ...], only_list: bool, file: str | None, as_json: bool) -> None:
    """Check this node, with or without a daemon.

    Exit code: 0 OK, 1 WARN, 2 CRITICAL, 3 UNKNOWN, of several the gravest in the order CRITICAL, UNKNOWN, WARN, OK.
    (Wrong usage is 2 too, with a line on stderr that begins with `Error:` or `muster:`.)
    """
    import anyio

    from agent import config
    from agent.errors import StartupError
    from probes import precheck, result

    if only_list:
        entries = precheck.catalogue()
        if as_json:
            emit_json({"checks": [{"item": e.item, "checks": e.checks, "codes": list(e.codes)} for e in entries]})
        else:
            emit(table(["ITEM", "CHECKS"], [[e.item, e.checks] for e in entries]))
        return
    path = Path(file) if file is not None else config.default_file(named_root(context))
    try:
        settings = (config.load(path) if file is not None or path.exists() else config.Config()).checks.settings()
        run = partial(precheck.run, settings, cards_wanted=0, cards_found=0, hosts=(), user="", items=items)
        results = anyio.run(run)
    except (StartupError, precheck.UnknownItem) as error:
        raise Failure(str(error), Exit.USAGE) from None
    worst = result.worst(results)
    if as_json:
        checks = [{name: getattr(r, name) for name in r.__slots__} for r in results]
        emit_json({"status": worst, "checks": checks})
    else:
        rows = [[r.item, r.status, r.code, f"{r.seconds:.3f}s", r.reason] for r in results]
        emit(table(["ITEM", "STATUS", "CODE", "TOOK", "REASON"], rows))
    raise click.exceptions.Exit(worst.exit_code)
