"""`muster kube`: tells Kubernetes whether this node is fit."""

import re
import signal
import socket

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed
from muster.agent.cli.fitness import gate
from muster.agent.cli.parameters import DURATION, Parsed
from muster.agent.cli.printing import emit, note

#: A key as Kubernetes takes it: a DNS name and a slash in front, if it likes.
_KEY = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,250}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def _key(written: str) -> str:
    if not _KEY.fullmatch(written):
        raise ValueError(f"{written!r}: must be a key such as muster/fit")
    return written


@click.command()
@pass_address
@click.option(
    "--node",
    "name",
    metavar="NAME",
    envvar="NODE_NAME",
    help="Name of this node in the cluster; default: NODE_NAME, else the host's name.",
)
@click.option(
    "--condition",
    metavar="TYPE",
    type=Parsed("type", _key),
    default="MusterNodeProblem",
    show_default=True,
    help="Type of the condition: True if the node is not fit, False if it is, Unknown.",
)
@click.option("--no-condition", is_flag=True, help="Write no condition.")
@click.option(
    "--label",
    metavar="KEY",
    type=Parsed("key", _key),
    help="Write a label too, such as muster/fit: true, false or unknown.",
)
@click.option(
    "--taint",
    "effect",
    type=click.Choice(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    help="Taint the node with this effect while it is not fit.",
)
@click.option(
    "--taint-key",
    metavar="KEY",
    type=Parsed("key", _key),
    default="muster/unfit",
    show_default=True,
    help="Key of the taint. Taints with another key are left alone.",
)
@click.option(
    "--every", metavar="DURATION", type=DURATION, default="10s", show_default=True, help="Time between looks."
)
@click.option(
    "--settle",
    metavar="DURATION",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Report a node as fit again, or as unknown, only when that has lasted for this time.",
)
@click.option(
    "--heartbeat",
    metavar="DURATION",
    type=DURATION,
    default="5m",
    show_default=True,
    help="Renew the heartbeat of the condition at this interval.",
)
@click.option(
    "--at-end",
    type=click.Choice(["keep", "unknown", "remove"]),
    default="keep",
    show_default=True,
    help="What to leave on the node at the end: everything, an unknown verdict (the taint stays), or nothing.",
)
@click.option("--kubeconfig", metavar="FILE", default="", help="Default: the pod's ServiceAccount, else KUBECONFIG.")
@click.option("--once", is_flag=True, help="Write the current verdict, and exit.")
@click.option("--dry-run", is_flag=True, help="Write nothing: print what would be written, and exit.")
def kube(
    address: Address,
    name: str | None,
    condition: str,
    no_condition: bool,
    label: str | None,
    effect: str | None,
    taint_key: str,
    every: float,
    settle: float,
    heartbeat: float,
    at_end: str,
    kubeconfig: str,
    once: bool,
    dry_run: bool,
) -> None:
    """Tell Kubernetes whether this node is fit.

    Writes what the daemon's gate says (`muster check --gate`) to the node's object: a condition, and with --label and
    --taint a label and a taint. It changes nothing that others wrote. Runs until SIGTERM or Ctrl-C. Needs the extra:
    pip install 'muster-agent[kubernetes]'.
    """
    if no_condition and not label and not effect:
        raise click.UsageError("nothing to write: leave --no-condition out, or give --label or --taint")
    from muster.agent.cli.commands.kube.kube_loop import KubeLoop, KubePace
    from muster.agent.cli.commands.kube.node_api import KubeFailed, NodeApi
    from muster.agent.cli.commands.kube.node_marks import KubeMarks

    marks = KubeMarks("" if no_condition else condition, label or "", taint_key, effect or "", heartbeat)
    api = NodeApi(name or socket.gethostname().lower(), kubeconfig)

    def say(text: str) -> None:
        emit(f"{text}\n")

    loop = KubeLoop(
        api,
        lambda: gate.ask(address),
        marks,
        KubePace(every_s=every, settle_s=settle),
        say,
        note,
        dry=dry_run,
    )
    if once or dry_run:
        try:
            loop.once()
        except KubeFailed as failure:
            raise CommandFailed(str(failure)) from None
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.end())
    loop.run()
    loop.leave(at_end)
