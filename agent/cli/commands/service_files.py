"""Which files make muster a service of a node, and where: those of `muster service install`, and those of a package.
`muster completion` prints one of them."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

import muster.agent
from muster.agent.cli.printing import emit
from muster.probes.kernel.dataclass import dataclass

if TYPE_CHECKING:
    from muster.agent.cli.installed import Content


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one who installs. `zsh`, `fish`: of their completions; that of bash is in `share`."""

    units: Path
    sysusers: Path
    tmpfiles: Path
    share: Path
    zsh: Path
    fish: Path
    #: Of the links to the programs.
    programs: Path


#: Of `muster service install`. fish looks into /usr/local/share only where $XDG_DATA_DIRS says so.
OWN = Places(
    units=Path("/etc/systemd/system"),
    sysusers=Path("/etc/sysusers.d"),
    tmpfiles=Path("/etc/tmpfiles.d"),
    share=Path("/usr/local/share"),
    zsh=Path("/usr/local/share/zsh/site-functions"),
    fish=Path("/etc/fish/completions"),
    programs=Path("/usr/local/bin"),
)
#: Of a package of a distribution (scripts/release/).
PACKAGED = Places(
    units=Path("/usr/lib/systemd/system"),
    sysusers=Path("/usr/lib/sysusers.d"),
    tmpfiles=Path("/usr/lib/tmpfiles.d"),
    share=Path("/usr/share"),
    zsh=Path("/usr/share/zsh/site-functions"),
    fish=Path("/usr/share/fish/vendor_completions.d"),
    programs=Path("/usr/bin"),
)


def wanted_files(
    cli: click.Command, bin_folder: Path, options: tuple[str, ...] = (), places: Places = OWN
) -> "dict[Path, Content]":
    """What is installed, by path. `cli`: the command `muster`; `options`: with which musterd of this folder is
    started."""
    from muster.agent.cli import manual
    from muster.agent.daemon_command import command as musterd

    source = _source()
    unit = (source / "musterd.service").read_text()
    unit = unit.replace("/opt/muster/bin/musterd\n", " ".join(("/opt/muster/bin/musterd", *options)) + "\n")
    unit = unit.replace("/opt/muster/bin/", f"{bin_folder}/")
    files = {
        places.units / "musterd.service": unit,
        places.units / "muster.slice": (source / "muster.slice").read_text(),
        places.sysusers / "muster.conf": (source / "sysusers.d/muster.conf").read_text(),
        places.tmpfiles / "muster.conf": (source / "tmpfiles.d/muster.conf").read_text(),
    }
    for name, text in (*manual.pages(cli, "muster"), *manual.pages(musterd, "musterd", 8)):
        files[places.share / f"man/man{name[-1]}" / name] = text
    for shell, place in (
        ("bash", places.share / "bash-completion/completions/muster"),
        ("zsh", places.zsh / "_muster"),
        ("fish", places.fish / "muster.fish"),
    ):
        files[place] = _completion(cli, shell)
    links = {places.programs / name: bin_folder / name for name in ("muster", "musterd")}
    return {path: text.encode() for path, text in files.items()} | links


def _source() -> Path:
    """Where the units are: in the package, or beside it in a checkout."""
    package = Path(muster.agent.__file__).resolve().parent
    return package / "units" if (package / "units").is_dir() else package.parent / "systemd"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: muster completion bash > ~/.local/share/bash-completion/completions/muster
    zsh:  muster completion zsh > a file named _muster in a folder of $fpath
    fish: muster completion fish > ~/.config/fish/completions/muster.fish
    """
    emit(_completion(context.find_root().command, shell))


def _completion(cli: click.Command, shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    return kind(cli, {}, "muster", "_MUSTER_COMPLETE").source() + "\n"
