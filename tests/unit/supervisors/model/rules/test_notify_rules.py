"""What a webhook's URL may be, and the table [notify]."""

import pytest

from muster.agent.config.notify_settings import NotifyTable
from muster.supervisors.model.rules import notify_rules
from muster.supervisors.model.rules.notify_rules import (
    EVENTS,
    JOB_EVENTS,
    events_problem,
    shown,
    webhook_problem,
)


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "https://hooks.example/T000/B000?token=x",
        "http://127.0.0.1:8080/",
        "http://[::1]:8080/x",
        "HTTPS://Example.org/%20",
    ],
)
def test_good_urls(url: str) -> None:
    assert webhook_problem(url) == ""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "must begin with http:// or https://"),
        ("hooks.example/secret", "must begin with http:// or https://"),
        ("ftp://h/secret", "'ftp' is not a supported scheme"),
        ("file:///etc/secret", "'file' is not a supported scheme"),
        ("http:///secret", "names no host"),
        ("http://:80/secret", "names no host"),
        ("http://h:0/secret", "the port must be 1 to 65535"),
        ("http://h:70000/secret", "is not a URL"),
        ("http://h:x/secret", "is not a URL"),
        ("http://[::1/secret", "is not a URL"),
        ("https://me:secret@h/", "https://h: must not have a user"),
        ("https://secret@h/", "must not have a user"),
        ("http://h/secret#part", "fragment"),
        ("http://h/secret x", "no URL has"),
        ("http://h/\r\nX-Evil: secret", "no URL has"),
        ("http://h/ä-secret", "no URL has"),
        ("http://h/" + "secret" * 1000, "has 6009 characters: at most 2048 are allowed"),
    ],
)
def test_bad_urls_are_reported_without_what_may_be_a_password(url: str, said: str) -> None:
    problem = webhook_problem(url)
    assert said in problem and "secret" not in problem


def test_only_the_host_is_shown() -> None:
    assert shown("https://hooks.example:8443/T0/secret?token=secret") == "https://hooks.example:8443"
    assert shown("https://me:secret@h/x") == "https://h"


def test_names_of_events() -> None:
    assert events_problem(JOB_EVENTS, JOB_EVENTS) == ""
    assert events_problem((), EVENTS) == ""
    problem = events_problem(("failed", "node_drained"), JOB_EVENTS)
    assert problem.startswith("'node_drained' is not an event") and problem.endswith(", ".join(JOB_EVENTS))
    assert set(notify_rules.EVENTS) > set(JOB_EVENTS)


# --- the table --------------------------------------------------------------------------------------------------------


def table(**raw: object) -> NotifyTable:
    return NotifyTable.read(raw)


def test_defaults_are_good_and_tell_nobody() -> None:
    bare = table()
    assert (bare.command, bare.webhook) == ((), "")
    assert bare.events == ("failed", "hung", "suspected_hang", "recovered", "output_lost", "node_condition")


def test_a_full_table() -> None:
    full = table(
        command=["/usr/bin/logger", "-t", "muster"],
        webhook="https://h/x",
        secret_file="/etc/muster/secret",
        proxy="http://proxy:3128",
        ca_file="/etc/ssl/own.pem",
        events=list(EVENTS),
        timeout_s=5,
        retry_max_s=60,
        keep=10,
        max_age_s=3600,
    )
    assert full.command == ("/usr/bin/logger", "-t", "muster") and full.events == EVENTS


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"command": ["logger"]}, "command: 'logger': the program must have an absolute path"),
        ({"command": ["/bin/x", "a\0"]}, "command: must not contain a NUL"),
        ({"webhook": "h/secret"}, "webhook: '' is not a supported scheme"),
        ({"secret_file": "secret"}, "secret_file: 'secret': must be an absolute path"),
        ({"ca_file": "own.pem"}, "ca_file: 'own.pem': must be an absolute path"),
        ({"proxy": "proxy:3128"}, "proxy: 'proxy' is not a supported scheme"),
        ({"proxy": "https://proxy:3128"}, "proxy: must be scheme, host and port"),
        ({"proxy": "http://proxy:3128/x"}, "proxy: must be scheme, host and port"),
        ({"events": []}, "events: []: name what"),
        ({"events": ["hang"]}, "events: 'hang' is not an event that muster posts: allowed are started, ended, failed"),
    ],
)
def test_bad_tables_are_reported_by_key(raw: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        table(**raw)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("raw", [{"timeout_s": 0}, {"retry_max_s": 0}, {"keep": 0}, {"max_age_s": 0}, {"url": "x"}])
def test_out_of_range_and_unknown_keys_are_refused(raw: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(raw))):
        table(**raw)
