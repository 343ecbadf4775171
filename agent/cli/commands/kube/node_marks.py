"""What a Node object should carry of muster's verdict, and which changes bring it there. Only what has muster's own
names is ever changed: everything else of the object is others'."""

import datetime
from collections.abc import Mapping
from typing import Any

from muster.agent.cli.fitness.gate import FIT, NOT_FIT, UNKNOWN, Fitness
from muster.agent.text import utc
from muster.probes.kernel.dataclass import dataclass

Node = Mapping[str, Any]

#: A condition's status by verdict, and back; its reason; the label's value.
_STATUS = {FIT: "False", NOT_FIT: "True", UNKNOWN: "Unknown"}
_CODES = {status: code for code, status in _STATUS.items()}
_REASON = {FIT: "MusterNodeIsFit", NOT_FIT: "MusterNodeIsNotFit", UNKNOWN: "MusterNodeIsUnknown"}
LABELS = {FIT: "true", NOT_FIT: "false", UNKNOWN: "unknown"}
_FIT = "muster finds nothing CRITICAL on this node"
_ENDED = "muster kube has exited: nobody checks this node"
#: A message of the same verdict is replaced after so many seconds: it may have numbers that change all the time.
_MESSAGE_S = 60.0
#: A version with more digits is none that can be compared.
_DIGITS = 32
#: Kubernetes' limit for the value of a label or taint.
_VALUE = 63


@dataclass(frozen=True, slots=True)
class KubeMarks:
    """Type of the condition, key of the label, key and effect of the taint; empty: there is none of this kind.
    `heartbeat_s`: how often a condition is confirmed that has not changed."""

    condition: str = "MusterNodeProblem"
    label: str = ""
    taint: str = "muster/unfit"
    effect: str = ""
    heartbeat_s: float = 300.0


@dataclass(frozen=True, slots=True)
class KubeChange:
    """One write. `status`: of the object's status; otherwise of the rest, if `version` is set only while the object
    is of that version. `text`: for people; empty: a heartbeat."""

    patch: Mapping[str, Any]
    text: str
    status: bool = False


def is_older(node: Node, other: Node) -> bool:
    """Whether it is an earlier state of the same object: what a watch tells may be older than what a write returned."""
    mine, its = node.get("metadata") or {}, other.get("metadata") or {}
    versions = [str(one.get("resourceVersion", "")) for one in (mine, its)]
    known = all(version.isascii() and version.isdigit() and len(version) < _DIGITS for version in versions)
    return known and mine.get("uid") == its.get("uid") and int(versions[0]) < int(versions[1])


def shown(node: Node, marks: KubeMarks) -> int | None:
    """The verdict that the object has now; None: none of muster's."""
    if marks.condition:
        condition = _condition(node, marks)
        return None if condition is None else _CODES.get(condition.get("status", ""), UNKNOWN)
    if marks.label:
        value = _labels(node).get(marks.label)
        return next((code for code, word in LABELS.items() if word == value), None)
    return NOT_FIT if any(map(marks_taint(marks), _taints(node))) else None


def changes(node: Node, found: Fitness, marks: KubeMarks, now: float) -> list[KubeChange]:
    """What brings the object to this verdict; nothing where it is there. `now`: seconds since the epoch. The taint goes
    first: it is of the version that was read, which the others change."""
    wanted = [
        _change_taint(node, found, marks),
        _change_label(node, LABELS[found.code], marks),
        _change_condition(node, found.code, found.reason or _FIT, marks, now),
    ]
    return [change for change in wanted if change is not None]


def farewell(node: Node, how: str, marks: KubeMarks, now: float) -> list[KubeChange]:
    """What is changed when the loop ends: no verdict is left (`unknown`; the taint stays), or nothing of muster's
    (`remove`)."""
    if how == "unknown":
        wanted = [
            _change_condition(node, UNKNOWN, _ENDED, marks, now),
            _change_label(node, LABELS[UNKNOWN], marks),
        ]
        return [change for change in wanted if change is not None]
    found = [change for change in (_without_taint(node, marks), _change_label(node, None, marks)) if change is not None]
    if marks.condition and _condition(node, marks) is not None:
        patch = {"status": {"conditions": [{"type": marks.condition, "$patch": "delete"}]}}
        found.append(KubeChange(patch, f"condition {marks.condition} removed", status=True))
    return found


def _change_condition(node: Node, code: int, message: str, marks: KubeMarks, now: float) -> KubeChange | None:
    if not marks.condition:
        return None
    old, status = _condition(node, marks) or {}, _STATUS[code]
    same = old.get("status") == status
    age = now - _seconds(old.get("lastHeartbeatTime"))
    stale = age >= marks.heartbeat_s or age < 0
    reworded = old.get("message") != message and (age >= _MESSAGE_S or age < 0)
    if same and not stale and not reworded:
        return None
    at = utc(now)
    condition = {
        "type": marks.condition,
        "status": status,
        "reason": _REASON[code],
        "message": message,
        "lastHeartbeatTime": at,
        "lastTransitionTime": utc(_seconds(old.get("lastTransitionTime")) or now) if same else at,
    }
    text = f"condition {marks.condition} is {status}: {message}" if not same or reworded else ""
    return KubeChange({"status": {"conditions": [condition]}}, text, status=True)


def _change_label(node: Node, value: str | None, marks: KubeMarks) -> KubeChange | None:
    if not marks.label or _labels(node).get(marks.label) == value:
        return None
    text = f"label {marks.label}={value}" if value is not None else f"label {marks.label} removed"
    return KubeChange({"metadata": {"labels": {marks.label: value}}}, text)


def _change_taint(node: Node, found: Fitness, marks: KubeMarks) -> KubeChange | None:
    """An unknown verdict is no reason to keep pods away, nor to let them in."""
    if not marks.effect or found.code == UNKNOWN:
        return None
    if found.code == FIT:
        return _without_taint(node, marks)
    old = [taint for taint in _taints(node) if marks_taint(marks)(taint)]
    if [taint.get("effect") for taint in old] == [marks.effect]:
        return None
    value = _value(found)
    others = [taint for taint in _taints(node) if taint not in old]
    # With `timeAdded` for NoExecute alone: Kubernetes adds it there, and for other effects nobody reads it.
    new = {"key": marks.taint, "value": value, "effect": marks.effect}
    return _of_taints(node, [*others, new], f"taint {marks.taint}={value}:{marks.effect}")


def _without_taint(node: Node, marks: KubeMarks) -> KubeChange | None:
    others = [taint for taint in _taints(node) if not marks_taint(marks)(taint)]
    if not marks.effect or len(others) == len(_taints(node)):
        return None
    return _of_taints(node, others, f"taint {marks.taint} removed")


def _of_taints(node: Node, taints: list[Any], text: str) -> KubeChange:
    """The list is replaced as a whole, so it must be the one that was read: the version says so."""
    version = node["metadata"]["resourceVersion"]
    return KubeChange({"metadata": {"resourceVersion": version}, "spec": {"taints": taints or None}}, text)


def marks_taint(marks: KubeMarks) -> Any:
    """Tells whether a taint is muster's."""
    return lambda taint: taint.get("key") == marks.taint


def _condition(node: Node, marks: KubeMarks) -> Mapping[str, Any] | None:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == marks.condition), None)


def _labels(node: Node) -> Mapping[str, str]:
    return (node.get("metadata") or {}).get("labels") or {}


def _taints(node: Node) -> list[Any]:
    return list((node.get("spec") or {}).get("taints") or ())


def _value(found: Fitness) -> str:
    """The code of the gravest condition, or that the node is drained: a value takes letters, digits, - _ and dots."""
    word = found.why[0].split(" ")[0].rstrip(":") if found.why else ""
    fits = word.replace("_", "").isalnum() and word.isascii() and word[0].isalnum() and word[-1].isalnum()
    return word[:_VALUE] if word and fits else "unfit"


def _seconds(written: str | None) -> float:
    try:
        return datetime.datetime.fromisoformat(written or "").timestamp()
    except ValueError:
        return 0.0
