"""docs/reference/api/job-states.md and its picture, from the one table of transitions (supervisors/model/states.py)."""

from collections.abc import Iterable

from muster.supervisors.model.states import TRANSITIONS, Kind, State
from scripts.reference_table import table

PICTURE = "job-states.svg"
_HEAD = f"""# States of a job

Which state follows which. `make docs` writes this page and the picture from the table of transitions in
[states.py](../../../supervisors/model/states.py), the only code by which a state changes.

![The states of a job, as the table below has them]({PICTURE})

The four states on the right are final. `Job.state` has the prefix `JOB_STATE_`. An event `job.*` tells each change
([Events](../events.md)). What happens meanwhile:
[A scheduler on the API: from start to end](../../guides/schedulers.md#from-start-to-end).

"""
_LIVE = [state for state in State if not state.final]
#: Middles of the boxes in the picture. What may come from every live state starts at the frame around these.
_PLACES = {
    State.ACCEPTED: (110, 60),
    State.CHECKING: (290, 60),
    State.PREPARING: (470, 60),
    State.RUNNING: (650, 60),
    State.RESTARTING: (470, 180),
    State.STOPPING: (650, 180),
    State.SUCCEEDED: (890, 30),
    State.FAILED: (890, 90),
    State.STOPPED: (890, 150),
    State.LOST: (890, 210),
}
_W, _H = 112, 34


def changes() -> dict[tuple[State, State], list[Kind]]:
    """The records that lead from a state to another one."""
    found: dict[tuple[State, State], list[Kind]] = {}
    for kind, (befores, after) in TRANSITIONS.items():
        afters = [state for state in State if state.final] if kind is Kind.ENDED else [after] if after else []
        for before in (state for state in State if state in befores):
            for state in afters:
                if state is not before:
                    found.setdefault((before, state), []).append(kind)
    return found


def job_states() -> str:
    """The text of the page."""
    rows = []
    for before in _LIVE:
        followers = [after for (state, after) in changes() if state is before]
        rows.append(
            (f"`{before}`", ", ".join(f"`{state}`" for state in followers if not state.final), _ends(followers))
        )
    return _HEAD + table(("state", "may be followed by", "may end as"), rows)


def _ends(followers: Iterable[State]) -> str:
    return ", ".join(f"`{state}`" for state in followers if state.final)


def picture() -> str:
    """The picture as SVG, without a script or a font of its own."""
    edges = changes()
    anywhere = {after for after in State if all((each, after) in edges for each in _LIVE if each is not after)}
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 250" role="img" font-family="sans-serif" '
        'font-size="14">',
        "<title>The states of a job</title>",
        "<style>.b{fill:#fff;stroke:#245}.f{fill:none;stroke:#789;stroke-dasharray:6 4}.e{fill:none;stroke:#245}"
        "text{fill:#123;text-anchor:middle;dominant-baseline:central}rect.s{fill:#fff;stroke:none}</style>",
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#245"/></marker></defs>',
        '<rect class="s" width="980" height="250"/>',
        '<rect class="f" x="30" y="14" width="700" height="212" rx="10"/>',
    ]
    for (before, after), _ in edges.items():
        if after not in anywhere:
            parts.append(_arrow(before, after, (after, before) in edges))
    for after in State:
        if after in anywhere:
            x, y = _PLACES[after]
            if after.final:
                parts.append(f'<path class="e" marker-end="url(#a)" d="M730 {y}H{x - _W / 2}"/>')
    if State.STOPPING in anywhere:
        x, y = _PLACES[State.STOPPING]
        parts.append(f'<path class="e" marker-end="url(#a)" d="M{x} 226V{y + _H / 2}"/>')
    for state, (x, y) in _PLACES.items():
        round_ = 17 if state.final else 4
        parts.append(
            f'<rect class="b" x="{x - _W / 2:g}" y="{y - _H / 2:g}" width="{_W}" height="{_H}" rx="{round_}"/>'
        )
        parts.append(f'<text x="{x}" y="{y}">{state}</text>')
    parts.append('<text x="205" y="208">from each state here: to STOPPING, and out</text>')
    return "\n".join([*parts, "</svg>", ""])


def _arrow(before: State, after: State, both: bool) -> str:
    (x1, y1), (x2, y2) = _PLACES[before], _PLACES[after]
    shift = 10 if both else 0
    if y1 == y2 and abs(x2 - x1) <= 200:  # neighbours in a row
        way = 1 if x2 > x1 else -1
        y = y1 - way * shift
        return f'<path class="e" marker-end="url(#a)" d="M{x1 + way * _W / 2:g} {y}H{x2 - way * _W / 2:g}"/>'
    if y1 == y2:  # over those between
        return (
            f'<path class="e" marker-end="url(#a)" d="M{x1} {y1 - _H / 2:g}C{x1} {y1 - 52} {x2} {y2 - 52} {x2} '
            f'{y2 - _H / 2:g}"/>'
        )
    down = 1 if y2 > y1 else -1
    x_shift = -down * shift
    # Not all in one point.
    x2 += max(-36, min(36, x1 - x2)) if down > 0 else 0
    x1 += max(-36, min(36, x2 - x1)) if down < 0 else 0
    return (
        f'<path class="e" marker-end="url(#a)" d="M{x1 + x_shift} {y1 + down * _H / 2:g}L{x2 + x_shift} '
        f'{y2 - down * _H / 2:g}"/>'
    )
