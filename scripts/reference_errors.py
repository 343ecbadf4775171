"""docs/reference/errors.md, from proto/muster/client/error_reasons.py and the classes in agent/errors.py."""

from muster.agent import errors
from muster.client.error_reasons import REASONS, ErrorReason
from scripts.reference_table import table

_HEAD = """# Error reasons

What each error of the API means, and whether to try again. `make docs` writes this page from
`proto/muster/client/error_reasons.py`; the client ([Clients](../guides/clients.md)) decides by the same table.

Each error has a status code and, in its details, a `google.rpc.ErrorInfo` of the domain `muster` with a stable
`reason`. Decide by the reason, show the message. Where the table has a pause, the error carries it as
`google.rpc.RetryInfo`.

Every call may be repeated without harm, except those that act each time: `RunCommand`, `ResetCard`, `Exec` with
`start`, and `Start` without a job id. A repeated `Delete`, `ClearConditions`, `AcceptCards` or `CancelReset` may fail
where the first one had its effect, because nothing is left to do; the page of each says how.

"""


def reasons() -> str:
    """The text of the page."""
    return _HEAD + table(("code", "reason", "meaning", "try again?", "pause"), map(_row, REASONS))


def _row(row: ErrorReason) -> tuple[str, ...]:
    reason = f"`{row.reason}`" if row.reason else "none"
    return row.code, reason, row.meaning, row.again, _pause(row.reason)


def _pause(reason: str) -> str:
    """As the class of this reason has it."""
    raised = {one.reason: one for one in vars(errors).values() if _is_error(one)}
    seconds = raised[reason].retry_after if reason in raised else None
    return f"{seconds:g} s" if seconds else ""


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, errors.ApiError)
