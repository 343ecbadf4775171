import threading
from pathlib import Path

import pytest

from muster.supervisors.model.rules import staging_urls
from muster.supervisors.model.staging_progress import SIZE, StagingProgress
from muster.supervisors.staging import copies, credentials
from muster.supervisors.staging.copies import Tries
from muster.supervisors.staging.reporting import Reporting
from muster.supervisors.staging.troubles import FileChanged, NotCopyable, SecretMask, TryAgain, of_remote


@pytest.fixture
def reporting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reporting:
    monkeypatch.setattr(copies, "FIRST_PAUSE_S", 0.0)
    with open(tmp_path / "progress", "wb") as file:
        return Reporting(file.fileno(), "inputs", SecretMask())


def test_tries_end_when_none_brings_anything(reporting: Reporting) -> None:
    one = Tries(3, threading.Event(), reporting)
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        one.reached = min(len(calls), 4)
        raise TryAgain("it broke off")

    with pytest.raises(TryAgain, match=r"it broke off \(3 tries in a row\)"):
        one.run(work)
    assert len(calls) == 6, "four that got further, the last of them the first of three that did not"


def test_a_file_that_changes_twice_is_given_up(reporting: Reporting) -> None:
    def work() -> None:
        raise FileChanged("x changed while it was copied")

    with pytest.raises(NotCopyable, match="copy it when nobody writes to it"):
        Tries(8, threading.Event(), reporting).run(work)


def test_nothing_is_tried_again_once_all_is_over(reporting: Reporting) -> None:
    over = threading.Event()
    over.set()
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise TryAgain("x")

    with pytest.raises(TryAgain):
        Tries(8, over, reporting).run(work)
    assert calls == [1]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), NotCopyable),
        (PermissionError("x"), NotCopyable),
        (ConnectionResetError("x"), TryAgain),
        (TimeoutError(), TryAgain),
        (ValueError("x"), NotCopyable),
    ],
)
def test_what_another_try_may_mend(error: Exception, kind: type[Exception]) -> None:
    assert type(of_remote(error, "s3://b/x")) is kind


def test_secrets_are_taken_out_of_texts() -> None:
    mask = SecretMask()
    mask.add(["hunter2-long", "hunter2", "", "abc"])
    assert mask("hunter2-long, hunter2: abc") == "***, ***: abc"


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        (0o640, "[s3]\n", "chmod 600"),
        (0o600, "key = 'hunter2'\n", "outside a section"),
        (0o600, "[s3]\nkey = hunter2\n", "line 2"),
    ],
)
def test_credentials_that_are_refused(tmp_path: Path, mode: int, text: str, said: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(NotCopyable, match=said) as refused:
        credentials.read(str(path))
    assert "hunter2" not in str(refused.value)


def test_the_longest_section_wins() -> None:
    table: dict[str, dict[str, object]] = {
        "s3": {"key": "a", "anon": False},
        "s3://b/": {"key": "b"},
        "s3://b/c/": {"key": "c"},
    }
    assert credentials.options(table, "s3://b/x") == {"key": "b", "anon": False}
    assert credentials.options(table, "s3://b/c/x")["key"] == "c"
    assert credentials.options(table, "https://x") == {}


@pytest.mark.parametrize("data", [b"", b"[]", b"x" * SIZE, b'{"files": -1, "size": "x", "now": []}', b"[" * SIZE])
def test_progress_that_somebody_has_written(tmp_path: Path, data: bytes) -> None:
    """The file is the job's user's."""
    path = tmp_path / "progress"
    path.write_bytes(data)
    told = StagingProgress.read(path)
    assert told is None or (told.files, told.size) == (0, 0)
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert StagingProgress.read(path) is None


def test_progress_is_one_write_and_read_again(tmp_path: Path) -> None:
    beside = {"pre_start": f"/h/{'x' * 4000}", "requirements": f"/h/{'x' * 4000}"}
    told = StagingProgress("inputs", 3, 1, 1 << 50, 7, 2, "a" * 200, "e" * 1000, beside)
    assert len(told.encode()) == SIZE
    (tmp_path / "p").write_bytes(told.encode())
    assert StagingProgress.read(tmp_path / "p") == told
    hostile = StagingProgress("inputs", now="\U0001f600" * 500, error="\U0001f600" * 5000)
    hostile.beside = {"pre_start": "x.sh", "requirements": "/x\n", "epilog": "/x"}
    assert len(hostile.encode()) == SIZE
    (tmp_path / "p").write_bytes(hostile.encode())
    assert StagingProgress.read(tmp_path / "p") == StagingProgress(
        "inputs", now="\U0001f600" * 200, error="\U0001f600" * 1000
    )


@pytest.mark.parametrize(
    ("url", "name", "shown"),
    [
        ("s3://bucket/a/demo-code", "demo-code", "s3://bucket/a/demo-code"),
        ("s3://bucket/a/demo-code/?x=/y", "demo-code", "s3://bucket/a/demo-code/?..."),
        ("s3://bucket", "code", "s3://bucket"),
        ("https://me:pw@host/x/..", "code", "https://host/x/.."),
        ("file:///data/set", "set", "file:///data/set"),
    ],
)
def test_names_and_what_is_shown_of_urls(url: str, name: str, shown: str) -> None:
    assert (staging_urls.name(url), staging_urls.shown(url)) == (name, shown)


def test_every_scheme_is_one_of_fsspecs() -> None:
    registry = pytest.importorskip("fsspec.registry")
    assert set(staging_urls.MODULES) - {"obs"} <= set(registry.known_implementations)
