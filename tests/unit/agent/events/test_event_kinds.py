import ast
import re
from collections.abc import Iterator
from pathlib import Path

from muster.agent.events.event_kinds import KINDS

AGENT = Path(__file__).parents[4] / "agent"
#: Names of files look like kinds.
KIND = re.compile(r"(job|rank|node|logs)\.(?!(json|log|toml|fifo)$)[a-z_]+")


def words(tree: ast.AST) -> Iterator[str]:
    """Strings that look like a kind of event, but for those of the daemon's own log."""
    if isinstance(tree, ast.Call) and ast.unparse(tree.func).startswith("_log."):
        return
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str) and KIND.fullmatch(tree.value):
        yield tree.value
    for child in ast.iter_child_nodes(tree):
        yield from words(child)


def test_every_kind_in_the_code_is_in_the_table_and_the_other_way_round():
    used = {
        word
        for path in AGENT.rglob("*.py")
        if path.name != "event_kinds.py" and not path.is_relative_to(AGENT / "cli")
        for word in words(ast.parse(path.read_text()))
    }
    assert used == set(KINDS)
