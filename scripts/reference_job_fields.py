"""docs/reference/job-fields.md, from the table of fields in supervisors/model/spec.py."""

from dataclasses import MISSING

from muster.supervisors.model.spec import FIELDS
from muster.supervisors.model.spec_fields import EventNames, Field

_HEAD = """# Job fields

What you can ask of a job: options of `muster run` and `muster start`, keys of `job.toml`, fields of `JobSpec` in
[job.proto](../../proto/muster/v1/job.proto). `make docs` writes this page from `supervisors/model/spec.py`.

- `-f FILE` reads a `job.toml` (`-` is stdin); [examples/job.toml](../../examples/job.toml) is an example with comments.
- Options win, key by key; `env`, `labels`, `limits` and `hang` win name by name. `--ranks` replaces the file's `cards`,
  and the other way round.
- muster refuses a key that it does not know and names the nearest one. You may write keys with `_` or `-`.
- A duration is a number of seconds, or text as in `"15s"` and `"1h30m"`. Relative paths count from the folder in which
  you call `muster`.
- Options for `NAME=VALUE` may be given several times.
- `JobSpec` calls its fields like `job.toml` does, except {others}.

| key | option | value | default | allowed | meaning |
|---|---|---|---|---|---|
"""


def job_fields() -> str:
    """The text of the page."""
    shown = [field for field in FIELDS.values() if field.help]
    others = ", ".join(
        f"`{field.api}` for `{field.key}`" for field in FIELDS.values() if field.key not in (None, field.api)
    )
    return _HEAD.format(others=others) + "".join(_row(field) for field in shown)


def _row(field: Field) -> str:
    key = f"`{field.key}`" if field.key else f"(`{field.name}` in `JobSpec` only)"
    option = f"{field.option or ''} {field.metavar}".strip() if field.option or field.name == "command" else ""
    allowed = "" if isinstance(field, EventNames) else field.allows()
    cells = [
        key,
        f"`{option}`" if option else "",
        field.toml,
        _default(field),
        allowed,
        f"{field.help} {field.more}".strip(),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(field: Field) -> str:
    if field.default is MISSING and not field.unset:
        return "required"
    if field.unset or isinstance(field.default, dict | tuple):
        return field.unset or "empty"
    return str(field.default).lower() or "none"
