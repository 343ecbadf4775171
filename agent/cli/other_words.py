"""Words of torchrun, msrun, mpirun, Slurm, docker and kubectl that muster lacks: an error names its own instead."""

import click

#: Commands.
_COMMANDS = {
    "attach": "logs -f JOB",
    "cancel": "stop JOB",
    "cordon": "node drain REASON",
    "delete": "rm JOB",
    "drain": "node drain REASON",
    "describe": "status JOB`, or of its end `muster why JOB",
    "get": "ps`, of one job `muster status JOB",
    "help": "--help",
    "info": "node",
    "inspect": "status -o json JOB",
    "jobs": "ps",
    "kill": "stop JOB`, with SIGKILL at once `muster stop --grace 0 JOB`, another signal `muster signal -s USR1 JOB",
    "list": "ps",
    "ls": "ps",
    "pause": "stop JOB`: muster pauses no job; start it again from its checkpoint with `muster start",
    "remove": "rm JOB",
    "reset": "node reset CARD",
    "resume": "node undrain",
    "sacct": "ps -a`, or of a job's end `muster why JOB",
    "sbatch": "start -- COMMAND",
    "scancel": "stop JOB",
    "scontrol": "status JOB`, of the node `muster node",
    "sinfo": "node",
    "squeue": "ps",
    "submit": "start -- COMMAND",
    "tail": "logs -f --tail 20 JOB",
    "uncordon": "node undrain",
    "undrain": "node undrain",
    "version": "--version",
}
_CARDS = "give --cards N (or all), one rank per card, or --ranks N on a host without cards"
_OUTPUT = "each rank's output is kept in a file: `muster logs JOB`, or --log-dir DIR with --standalone"
#: Options of `run` and `start`, without dashes and with hyphens.
_OPTIONS = {
    "nproc-per-node": _CARDS,
    "nproc": _CARDS,
    "num-processes": f"{_CARDS}: the numbers of one node",
    "worker-num": f"{_CARDS}: the numbers of one node",
    "local-worker-num": _CARDS,
    "cluster-time-out": "give --env MSRUN_CLUSTER_TIME_OUT=SECONDS with --boot msrun",
    "nnodes": "give --nodes A,B with the names of all nodes, and --node-rank I",
    "m": "give the interpreter, too: -- python -m MODULE",
    "module": "give the interpreter, too: -- python -m MODULE",
    "no-python": "any command goes: -- COMMAND",
    "rdzv-backend": "ranks meet at --master-addr and --master-port",
    "rdzv-conf": "ranks meet at --master-addr and --master-port",
    "rdzv-endpoint": "ranks meet at --master-addr and --master-port",
    "rdzv-id": "give --job-id ID",
    "redirects": _OUTPUT,
    "r": _OUTPUT,
    "tee": "muster shows the output and keeps it in a file for each rank: `muster logs JOB`",
    "start-method": "each rank is a process of its own",
    "monitor-interval": "muster sees at once that a rank has ended",
    "local-addr": "the other nodes reach the ranks of this one by its name in --nodes, and the first by --master-addr",
    "local-ranks-filter": "`muster logs JOB -r RANK` shows the output of one rank",
    "logs-specs": _OUTPUT,
    "role": "give --label role=NAME",
    "numa-binding": "set `bind_cpus` in [cards] of the daemon's configuration",
    "signals-to-handle": "SIGTERM, Ctrl-C and SIGHUP stop the job; SIGUSR1 and SIGUSR2 are passed on to the ranks",
    "run-path": "give the interpreter, too: -- python FILE",
    "ntasks": "give --ranks N, or --cards N for one rank per card",
    "gpus": "give --cards N",
    "n": "give --ranks N, or --cards N for one rank per card",
    "np": "give --ranks N, or --cards N for one rank per card",
    "time": "give --max-runtime DURATION, as in 48h",
    "t": "for a time limit give --max-runtime DURATION, as in 48h; torchrun's --tee needs no option: muster shows the "
    "output and keeps it",
    "hostfile": "give --nodes A,B and --node-rank I on each node, or `muster run --hosts-file FILE`",
    "chdir": "give --workdir DIR",
}


def answered(error: click.ClickException) -> click.ClickException:
    """The error, or one that says what this is in muster."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and context is not None and context.info_name in ("run", "start"):
        name = error.option_name.lstrip("-").replace("_", "-")
        here = {option for one in context.command.params for option in one.opts}
        meant = _OPTIONS.get(name) or (f"it is --{name}" if f"--{name}" in here else None)
        if meant is not None:
            return click.UsageError(f"no such option {error.option_name!r}: {meant}", context)
    if context is not None and context.parent is None and context.info_name == "muster":
        word = error.message.partition("No such command '")[2].partition("'")[0]
        if word in _COMMANDS:
            return click.UsageError(f"no such command {word!r}: it is `muster {_COMMANDS[word]}`", context)
    return error
