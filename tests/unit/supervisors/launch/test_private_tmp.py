"""The folders in the place of /tmp, and what a job sees beside them."""

import os
from pathlib import Path

import pytest

from muster.supervisors.launch.hardening import mounts, private_tmp
from muster.supervisors.model.hardening import Hardening


def test_a_tmp_that_is_a_link_has_its_private_folder_behind_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    (real / "folder" / "deep").mkdir(parents=True)
    link.symlink_to(real)
    monkeypatch.setattr(private_tmp, "TMP_PLACES", (str(link), str(tmp_path / "none")))
    places = private_tmp.places()
    assert places == [str(real)]
    work = f"{link}/folder/deep"
    binds = private_tmp.make("j", places, [os.path.realpath(work)], [work])
    inner = f"{real}/j/tmp"
    assert binds == [(f"{real}/folder/deep", f"{inner}/folder/deep"), (inner, str(real))]
    assert (Path(inner).stat().st_mode & 0o7777, Path(inner, "folder").is_symlink()) == (0o1777, False)
    assert private_tmp.existing("j") == [f"{link}/j"]
    private_tmp.begin_removal("j")
    os.wait()
    assert private_tmp.existing("j") == []


def test_a_bind_below_a_private_tmp_is_read_only_with_what_is_around_it() -> None:
    view = mounts.MountView(["/tmp/state/j"], ["/tmp"], ["/tmp/d"])
    there = [mounts.NodeMount(path, 0) for path in ("/", "/tmp", "/tmp/x", "/tmp/d/in", "/data")]
    _, made = mounts.read_only(["/"], view, there)
    assert {path for path, _, _ in made} == {"/", "/tmp/d", "/tmp/d/in", "/data"}
    _, made = mounts.read_only(["/data"], view, there)
    assert [path for path, _, _ in made] == ["/data"]


def test_where_the_node_has_a_file_of_a_private_tmp() -> None:
    own = Hardening(private_tmp="code")
    assert own.on_node("j", "/var/tmp/x") == "/var/tmp/muster-j-code/tmp/x"
    assert own.on_node("j", "/tmp/w/x", ["/tmp/w", ""]) == "/tmp/w/x"
    assert own.on_node("j", "res") == "res" and Hardening().on_node("j", "/tmp/x") == "/tmp/x"
