"""The rules about several fields of a spec that do not depend on the node."""

import re
from collections.abc import Callable, Iterator

from muster.supervisors.launch.modes import boot, modelarts
from muster.supervisors.model.spec import FIELDS, JobSpec, OnHang, Violation, variable
from muster.supervisors.model.spec_fields import RESERVED
from muster.supervisors.paths import is_reserved

Name = Callable[[str], str]
_FIELD = re.compile(rf"^({'|'.join(FIELDS)})(?!\w)")


def api_name(field: str) -> str:
    """What a field is called in a message."""
    return FIELDS[field].api


def violations(spec: JobSpec, name: Name = api_name) -> list[Violation]:
    """Everything that is wrong with a spec as such; what depends on this node (users, cards) is not looked at.

    `name` says what a field is called where the spec comes from.
    """
    found = [*_of_each(spec), *_of_several(spec), *boot.problems(spec)]
    return [Violation(_FIELD.sub(lambda field: name(field[0]), v.field), v.description) for v in found]


def _of_each(spec: JobSpec) -> Iterator[Violation]:
    for field in FIELDS.values():
        if (value := getattr(spec, field.name)) != field.default:
            for part, description in field.problems(value):
                yield Violation(field.name + part, description)


def _of_several(spec: JobSpec) -> Iterator[Violation]:
    platform = modelarts.platform_name(spec.env)
    if is_reserved(platform):
        yield Violation(variable("MA_VJ_NAME"), f"{platform!r}: {RESERVED}")
    if spec.ranks and spec.wants_cards:
        yield Violation("ranks", f"{spec.ranks} together with cards: give one of the two; each card gets one rank")
    ways = {"count": spec.card_count, "indices": spec.card_indices, "all": spec.all_cards}
    if len(given := [name for name, value in ways.items() if value]) > 1:
        yield Violation("cards", f"{' and '.join(given)}: give only one of them")
    if spec.node_rank >= max(spec.node_count, 1):
        allowed = f"must be 0 to {spec.node_count - 1} with {spec.node_count} node(s)"
        yield Violation("node_rank", f"{spec.node_rank}: {allowed}")
    if spec.nodes and len(spec.nodes) != spec.node_count:
        names = f"{len(spec.nodes)} names for {spec.node_count} node(s)"
        yield Violation("nodes", f"{names}: name every node once, in the order of node_rank")
    if spec.node_count > 1 and not spec.master_addr:
        yield Violation("master_addr", "is not set: a job of several nodes needs the address of its first node")
    if spec.node_count > 1 and not spec.master_port:
        yield Violation("master_port", "is not set: a job of several nodes needs a port, the same on every node")
    if spec.seccomp and spec.no_new_privs == "no":
        yield Violation("no_new_privs", "is no, but seccomp names a profile, which implies yes: leave one of them out")
    if spec.on_hang == OnHang.RESTART and not spec.max_restarts:
        yield Violation("on_hang", "is restart, but max_restarts is 0: say how often muster may start the job again")
    for field in ("notify_events", "notify_secret"):
        if getattr(spec, field) and not spec.notify_webhook:
            yield Violation(field, "needs notify.webhook: say where to post the events")
