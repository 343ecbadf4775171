"""What a person meets at a shell of the machine: completions, man pages, the journal."""

import json

from tests.system.jobs import check_unharmed, on_a_machine, start
from tests.system.machine import VENV, Machine

pytestmark = on_a_machine()

SHARE = "/usr/local/share"


def test_man_pages(node: Machine) -> None:
    """Each renders without a warning, is found by its name, and says of which version and build it is."""
    shown = node.muster("--version")
    pages = {page.rpartition("/")[2] for page in node.sh(f"ls {SHARE}/man/man*/muster*").split()}
    assert {"muster.1", "muster-run.1", "muster-service-install.1", "musterd.8"} <= pages
    assert node.sh(f"mandoc -T lint -W warning {SHARE}/man/man*/muster* || true") == ""
    assert node.sh(f"for page in {SHARE}/man/man*/muster*; do man --warnings=w -l $page 2>&1 >/dev/null; done") == ""
    # /usr/local/man is a link to it on Debian, and found first.
    found = node.sh("readlink -f $(man -w muster-logs musterd)").split()
    assert found == [f"{SHARE}/man/man1/muster-logs.1", f"{SHARE}/man/man8/musterd.8"]
    assert shown in node.sh("MANWIDTH=200 man -P cat muster-run | tail -1")
    assert node.sh("mandb -q; whatis muster-logs").startswith("muster-logs (1)")


def test_completions(node: Machine) -> None:
    file = f"{SHARE}/bash-completion/completions/muster"
    assert node.run("bash", "-c", f"set -eu; . {file}; complete -p muster") == (
        "complete -o nosort -F _muster_completion muster"
    )
    script = (
        f". {file}; COMP_WORDS=(muster lo) COMP_CWORD=1; _muster_completion muster lo muster; echo ${{COMPREPLY[@]}}"
    )
    assert node.run("bash", "-c", script) == "logs"
    assert node.run("zsh", "-fc", "autoload -U compinit; compinit -D; echo $_comps[muster]") == "_muster"
    assert node.run("zsh", "-fc", "zmodload zsh/complist; autoload -U compinit; compinit -D; autoload +X _muster") == ""
    assert node.run("fish", "-c", "complete -C 'muster lo'").split()[0] == "logs"


def test_the_journal_has_fields(node: Machine) -> None:
    """An entry for each step of a job, with the job and what it is as fields of their own."""
    ranks = start(node, "told")
    check_unharmed(node, "told", ranks)
    lines = node.run("journalctl", "-u", "musterd", "MUSTER_JOB=told", "-o", "json").splitlines()
    entries = {entry["MUSTER_KIND"]: entry for entry in map(json.loads, lines)}
    assert {"job.accepted", "job.running", "job.ended"} <= entries.keys()
    ended = entries["job.ended"]
    assert ended["MUSTER_JOB"] == "told" and ended["PRIORITY"] == "6" and ended["SYSLOG_IDENTIFIER"] == "musterd"
    assert ended["_SYSTEMD_UNIT"] == "musterd.service"
    assert ended["MESSAGE"].startswith("job.ended: ") and "exited with code 7" in ended["MESSAGE"]
    # What comes by stderr is what nobody wrote as an entry: a traceback, a line of a library.
    plain = node.run("journalctl", "-u", "musterd", "_TRANSPORT=stdout", "_COMM=musterd", "-o", "cat", "-b")
    assert plain == ""
    assert node.run(f"{VENV}/bin/muster", "ps", check=False) != ""
