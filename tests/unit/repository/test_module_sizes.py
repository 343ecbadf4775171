"""The size of modules: a small one that only one other uses joins that one, unless there is a border between them; a
long one is one matter."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.unit.repository.sources import modules, nodes, tree

#: Lines of a module that is small; and of two that are too many for one.
SMALL, TOGETHER = 80, 350
#: Small modules that stay for a reason that is not to be seen: the border between two rooms, or one of several that are
#: made alike.
APART = {
    "agent.cli.spec.volcano_hosts": "one operator's lists, read without a draft; kube_pod.py chooses between operators",
    "agent.api.services.event_service": "one module for each service of the API",
    "agent.metrics.textfile": "one of two ways to the page, as scrape_server.py",
    "agent.metrics.slow_metrics": "metrics, made of what the watch for slow ranks knows",
    "agent.notify.command": "one of two kinds of receivers, as webhook.py",
    "agent.why.causes.causes_launched": "one of the causes that probable_cause.py goes through",
    "probes.calls.heartbeat": "a schedule that knows no cards",
    "probes.hang.slow.short_steps": "one of the ways to see a slow rank, as dumps.py",
    "probes.library.dump_taking": "what the room offers; its __init__ is no module to join",
    "supervisors.job.hardware": "faults.json, which the daemon writes, is read here alone",
    "supervisors.launch.card_numbers": "cards.json is read in launch/, which makes the environment of it",
    "supervisors.launch.hardening.confinement": "hardening: what each process is given",
    "supervisors.launch.keyring": "what a job's processes are given",
    "supervisors.launch.service_processes": "whose a process is, by what it was started with",
    "supervisors.output.log_compressor": "the format of logs; the daemon only says when",
    "supervisors.system.controllers.freezer": "a controller of cgroup v1, as job_limits.py",
}

#: Lines of a module from which on it must be one matter; and those that are.
LONG = 420
ONE_MATTER = {
    "agent.errors": "a table: the errors of the daemon",
    "agent.events.event_store": "one state, with a thread that writes: what is shown, what waits, what is on the disk",
    "agent.reset.reset_run": "one procedure, step after step",
    "probes.checks.codes": "a table: what each code means",
    "probes.hang.tables.patterns": "a table: the patterns of the hang rule",
    "supervisors.model.spec_fields": "a table: the kinds of fields",
}


#: agent/, supervisors/ and probes/, by the names after `muster.`
MODULES = {name.removeprefix("muster."): path for name, path in modules().items()}


@functools.cache
def _lines() -> dict[str, int]:
    return {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules of ours that a module imports, and whether it does so before it is used."""
    first = {id(node) for node in tree(path).body}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name.removeprefix("muster.") in MODULES else node.module for name in names]
        elif isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            continue
        for name in {name.removeprefix("muster.") for name in found}:
            yield name, id(node) in first


@functools.cache
def _importers() -> dict[str, dict[str, bool]]:
    """By module: who imports it, and whether at once."""
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for name, path in MODULES.items():
        for other, at_once in _imports(path):
            if other in MODULES:
                found[other][name] = found[other].get(name, False) or at_once
    return found


def _is_apart(name: str, importer: str) -> bool:
    """Whether there is a reason that can be seen: a command or the daemon starts sooner without it; a program of its
    own; the two together are too long."""
    program = '__name__ == "__main__"' in MODULES[name].read_text()
    return program or not _importers()[name][importer] or _lines()[name] + _lines()[importer] > TOGETHER


def _alone() -> dict[str, str]:
    """Small modules with one importer and no such reason, and that importer."""
    found = {}
    for name, path in MODULES.items():
        importers = _importers().get(name, {})
        if path.name not in ("__init__.py", "__main__.py") and _lines()[name] < SMALL and len(importers) == 1:
            (importer,) = importers
            if not _is_apart(name, importer):
                found[name] = importer
    return found


def test_a_small_module_joins_its_only_importer() -> None:
    apart = [
        f"{name} ({_lines()[name]} lines): move it into {importer}, or say in APART why not"
        for name, importer in sorted(_alone().items())
        if name not in APART
    ]
    assert not apart, "\n".join(apart)


def test_each_reason_is_of_a_module_that_is_there() -> None:
    assert APART.keys() <= MODULES.keys()


def test_a_long_module_is_one_matter() -> None:
    long = [
        f"{name} has {lines} lines: split it, or say in ONE_MATTER what would be lost"
        for name, lines in sorted(_lines().items())
        if lines > LONG and name not in ONE_MATTER
    ]
    assert not long, "\n".join(long)
