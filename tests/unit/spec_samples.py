"""A value of each field of a spec that is not its default, and how people write it, by the kind of the field.

So a new field of a known kind is tested at every border as soon as it stands in the table.
"""

from typing import Any

from muster.supervisors.model import spec_fields as kinds
from muster.supervisors.model.spec_fields import Field

#: The value, what job.toml has for it, and what stands behind the option.
_BY_KIND: dict[type[Field], tuple[Any, Any, str]] = {
    kinds.JobId: ("job-2", "job-2", "job-2"),
    kinds.Text: ("other", "other", "other"),
    kinds.FilePath: ("/a/b", "/a/b", "/a/b"),
    kinds.Flag: (True, True, ""),
    kinds.Cards: (2, 2, "2"),
    kinds.Indices: ((0, 3), [0, 3], "0,3"),
    kinds.AllCards: (True, "all", "all"),
    kinds.Whole: (3, 3, "3"),
    kinds.Octal: (0o27, "027", "027"),
    kinds.TimeLimit: (90.0, "1m30s", "90"),
    kinds.Delay: (0.0, "0s", "0"),
    kinds.Steps: ((1.5,), [1.5], "1500ms"),
    kinds.Words: (("python", "x.py", ""), ["python", "x.py", ""], ""),
    kinds.Services: (("serve --port 7",), ["serve --port 7"], "serve --port 7"),
    kinds.Paths: (("/a", "/b c"), ["/a", "/b c"], "/a,/b c"),
    kinds.Capabilities: (("sys_nice", "CAP_KILL"), ["sys_nice", "CAP_KILL"], "sys_nice, CAP_KILL"),
    kinds.Hosts: (("a", "b"), ["a", "b"], "a, b"),
    kinds.Webhook: ("https://example.org/hook", "https://example.org/hook", "https://example.org/hook"),
    kinds.Variables: ({"A": "1"}, {"A": 1}, "A=1"),
    kinds.Labels: ({"team": "x"}, {"team": "x"}, "team=x"),
    kinds.StagingUrl: ("s3://b/code", "s3://b/code", "s3://b/code"),
    kinds.Inputs: ({"d": "s3://b/x=1"}, {"d": "s3://b/x=1"}, "s3://b/x=1=d"),
    kinds.Outputs: ({"o": "s3://b/x=1"}, {"o": "s3://b/x=1"}, "o=s3://b/x=1"),
    kinds.LimitTable: ({"nofile": -1.0}, {"nofile": "unlimited"}, "nofile=unlimited"),
    kinds.RuleSettings: ({"hung_s": "900"}, {"hung_s": 900}, "hung_s=900"),
}


def sample(field: Field) -> tuple[Any, Any, str]:
    """The value, what job.toml has for it, what stands behind the option. A secret has only a file."""
    if isinstance(field, kinds.Secret):
        return "hunter2", None, ""
    if field.allowed:
        word = next(word for word in field.allowed if word != field.default)
        return ((word,), [word], word) if field.many else (word, word, word)
    return _BY_KIND[type(field)]
