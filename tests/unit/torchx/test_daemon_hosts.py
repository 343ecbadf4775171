"""Which daemons a command talks to."""

import os
from pathlib import Path
from typing import Any

import pytest

from muster.torchx import submitted
from muster.torchx.daemon_hosts import DaemonHost, HostTls, KnownHosts, WrongOption, chosen, parse_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("gpu1:7443", DaemonHost("gpu1:7443")),
        (" gpu1:7443 ", DaemonHost("gpu1:7443")),
        ("[fd00::1]:7443", DaemonHost("[fd00::1]:7443")),
        ("10.0.0.1@login:7443", DaemonHost("login:7443", "10.0.0.1")),
        ("unix:/run/m.sock", DaemonHost("unix:/run/m.sock")),
        ("unix:///run/m.sock", DaemonHost("unix:/run/m.sock")),
        ("/run/../run/m.sock", DaemonHost("unix:/run/m.sock")),
        ("gpu1@/run/m.sock", DaemonHost("unix:/run/m.sock", "gpu1")),
    ],
)
def test_notation(text: str, host: DaemonHost) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    ["gpu1", "gpu1:", ":7443", "gpu1:0", "gpu1:65536", "gpu1:x", "gpu1:\u0663", "@gpu1:1", "unix:", "/" + "x" * 107],
)
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(WrongOption) as error:
        parse_host(text)
    assert error.value.option == "hosts"


@pytest.mark.parametrize(
    ("host", "alone", "reached"),
    [
        (DaemonHost("gpu1:7443"), False, "gpu1"),
        (DaemonHost("[fd00::1]:7443"), False, "fd00::1"),
        (DaemonHost("login:7443", "10.0.0.1"), True, "10.0.0.1"),
        (DaemonHost("unix:/m.sock"), True, "localhost"),
        (DaemonHost("unix:/m.sock", "gpu1"), True, "gpu1"),
    ],
)
def test_where_other_nodes_reach_it(host: DaemonHost, alone: bool, reached: str) -> None:
    assert host.reached_at(alone) == reached


def test_a_socket_among_other_nodes_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    assert DaemonHost("unix:/m.sock").reached_at(False) == "login1"


@pytest.mark.parametrize(
    ("options", "environment", "settings", "hosts"),
    [
        ({"hosts": ["a:1"]}, "b:1", {"hosts": ["c:1"]}, ["a:1"]),
        ({"hosts": None}, "b:1", {"hosts": ["c:1", "c:1"]}, ["c:1", "c:1"]),
        ({}, "b:1", {"hosts": ["c:1, d:1"]}, ["c:1", "d:1"]),
        ({}, "b:1,d:1;e:1", {}, ["b:1", "d:1", "e:1"]),
        ({}, "", {}, []),
    ],
)
def test_who_says_which(
    options: Any, environment: str, settings: Any, hosts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("muster.torchx.daemon_hosts.LOCAL_SOCKET", tmp_path / "none")
    monkeypatch.setenv("MUSTER_HOSTS", environment)
    assert [host.address for host in chosen(options, lambda: settings).hosts] == hosts


def test_the_daemon_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "m.sock").touch()
    monkeypatch.setattr("muster.torchx.daemon_hosts.LOCAL_SOCKET", tmp_path / "m.sock")
    monkeypatch.delenv("MUSTER_HOSTS", raising=False)
    assert chosen({}, dict) == KnownHosts((DaemonHost(f"unix:{tmp_path}/m.sock"),))


def test_files_of_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_TLS_CERT", "/env.crt")
    found = chosen({"hosts": ["a:1"], "tls_ca": "/ca.pem"}, lambda: {"tls_key": "/k", "tls_ca": "/no"})
    assert found.tls == HostTls("/ca.pem", "/env.crt", "/k")
    local = chosen({"hosts": ["/a.sock"], "tls_ca": "/ca.pem"}, dict)
    assert local.tls == HostTls()


# --- notes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "muster" / "torchx"


def test_notes(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted, "MOST_NOTES", 2)
    known = KnownHosts((DaemonHost("a:1", "x"), DaemonHost("b:1")), HostTls("/c", "/d", "/e"))
    for number, name in enumerate(("one", "two", "three")):
        submitted.note(name, known)
        os.utime(state / f"{name}.json", (number, number))
    submitted.note("four", known)
    assert sorted(path.name for path in state.iterdir()) == ["four.json", "three.json"]
    assert submitted.recall("four") == known and submitted.recall("one") is None
    assert submitted.recall_all() == [known, known]
    assert state.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"hosts": 1, "tls": []}', '{"hosts": [["a"]], "tls": ["","",""]}'])
def test_a_note_that_is_damaged(state: Path, text: str) -> None:
    state.mkdir(parents=True)
    (state / "x.json").write_text(text)
    assert submitted.recall("x") is None and submitted.recall_all() == []


def test_a_note_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    submitted.note("x", KnownHosts())
    assert submitted.recall("x") is None and submitted.recall_all() == []


@pytest.mark.parametrize("name", ["../../x", "", "a/b", "x" * 129])
def test_a_note_is_in_its_folder(state: Path, name: str) -> None:
    state.mkdir(parents=True)
    assert submitted.recall(name) is None


def test_a_relative_state_folder_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the specification of these folders says, and as `muster why` finds its runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    submitted.note("x", KnownHosts())
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert (tmp_path / "home/.local/state/muster/torchx/x.json").exists()
