"""What a request must meet on this node."""

import os
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from muster.agent.config.schema import Config
from muster.agent.errors import InvalidRequest, NoRoom
from muster.agent.jobs import admission
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.spec_fields import JOB_ID


def test_new_ids_are_ids_and_sort_by_time(monkeypatch):
    ticks = count(1_750_000_000, 0.0004)  # the machine's own clock may be set back
    monkeypatch.setattr(time, "time", lambda: next(ticks))
    ids = [admission.new_job_id() for _ in range(50)]
    assert all(JOB_ID.fullmatch(i) for i in ids)
    assert len(set(ids)) == 50
    times = [i.split("-")[1] for i in ids]
    assert times == sorted(times)


def test_a_spec_that_is_too_large():
    config = replace(Config(), jobs=replace(Config().jobs, max_ranks=4))
    admission.refuse_configured(JobSpec("a", ("true",), ranks=4), config)
    with pytest.raises(InvalidRequest, match="ranks: 5: this node allows at most 4"):
        admission.refuse_configured(JobSpec("a", ("true",), ranks=5), config)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hungs": "3"}, {"hang[hungs]": "is not a setting of the hang rule (near it: hung_s"}),
        ({"a: b" * 50: "3"}, {"hang[" + "a: b" * 10 + "]": "is not a setting"}),
        ({"action": "stop"}, {"hang[action]": "on_hang sets the action"}),
        ({"hung_s": "soon", "rule": "x"}, {"hang[hung_s]": "'soon': must be a number", "hang[rule]": "full or plain"}),
        ({"hung_s": "nan"}, {"hang[hung_s]": "must be a number, 0.1 to"}),
        ({"min_samples": "9" * 400}, {"hang[min_samples]": "has 400 characters: at most 32 are allowed"}),
        ({"file_system_waits": "x" * 5000}, {"hang[file_system_waits]": "at most 4096 are allowed"}),
        ({"hung_s": "900", "suspect_s": "1000"}, {"hang[hung_s]": "must be at least suspect_s, which is 1000"}),
        # The one that misses another is not told beside that.
        ({"suspect_s": "1000", "hung_s": "1e9"}, {"hang[hung_s]": "0.1 to 2592000"}),
        ({"suspect_s": "700"}, {"hang[suspect_s]": "conflicts with the node's setting: hung_s: 650"}),
    ],
)
def test_a_jobs_own_settings_of_the_hang_rule(settings: dict[str, str], says: dict[str, str]):
    config = replace(Config(), hang=replace(Config().hang, hung_s=650.0, action="stop"))
    with pytest.raises(InvalidRequest) as caught:
        admission.refuse_configured(JobSpec("a", ("true",), hang=settings), config)
    told = {violation.field: violation.description for violation in caught.value.violations}
    assert told.keys() == says.keys()
    assert all(words in told[field] for field, words in says.items()), told


def test_good_settings_of_the_hang_rule_are_taken():
    good = {"hung_s": "900", "suspect_s": "700.5", "min_samples": "7", "rule": "plain", "file_system_waits": ""}
    admission.refuse_configured(JobSpec("a", ("true",), hang=good), Config())


def test_the_working_folder_must_be_one(tmp_path: Path):
    admission.refuse_unfit(JobSpec("a", ("true",), workdir=str(tmp_path)))
    (tmp_path / "file").touch()
    for path, why in ((tmp_path / "none", "no such file"), (tmp_path / "file", "is not a folder")):
        with pytest.raises(InvalidRequest, match=why) as caught:
            admission.refuse_unfit(JobSpec("a", ("true",), workdir=str(path)))
        assert caught.value.violations[0].field == "workdir"
        assert str(path) in str(caught.value)


def test_a_callers_own_folder_must_be_the_same_one_here(tmp_path: Path):
    spec, seen = JobSpec("a", ("true",), workdir=str(tmp_path)), tmp_path.stat()
    admission.refuse_unfit(spec, (seen.st_dev, seen.st_ino))
    with pytest.raises(InvalidRequest, match=r"another folder .* different containers: give --workdir") as caught:
        admission.refuse_unfit(spec, (seen.st_dev, seen.st_ino + 1))
    assert caught.value.violations[0].field == "workdir" and str(tmp_path) in str(caught.value)
    with pytest.raises(InvalidRequest, match=r"no such file .* different containers: give --workdir"):
        admission.refuse_unfit(JobSpec("a", ("true",), workdir=str(tmp_path / "none")), (seen.st_dev, seen.st_ino))


def test_the_user_must_exist_and_be_allowed(monkeypatch: pytest.MonkeyPatch):
    admission.refuse_unfit(JobSpec("a", ("true",), user=str(os.geteuid())))
    with pytest.raises(InvalidRequest, match="user: user 'no-such-user' does not exist on this node"):
        admission.refuse_unfit(JobSpec("a", ("true",), user="no-such-user"))
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(InvalidRequest, match="not as root"):
        admission.refuse_unfit(JobSpec("a", ("true",), user="root"))
    admission.refuse_unfit(JobSpec("a", ("true",), user="4242"))


def test_the_nodes_grace_is_filled_in_only_where_it_differs():
    spec = JobSpec("a", ("true",))
    assert admission.resolved(spec, Config()) is spec
    config = replace(Config(), jobs=replace(Config().jobs, grace_steps=(3.0,)))
    assert admission.resolved(spec, config).grace_steps == (3.0,)
    own = JobSpec("a", ("true",), grace_steps=(9.0,))
    assert admission.resolved(own, config) is own


def test_a_free_port_is_not_in_use():
    port = admission.free_port(set())
    assert 0 < port < 65536
    assert admission.free_port({port}) != port
    with pytest.raises(NoRoom, match="name one in the request"):
        admission.free_port(set(range(65536)))
