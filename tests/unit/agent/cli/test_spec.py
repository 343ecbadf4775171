import os

import click
import pytest

from muster.agent.cli.exits import BadSpec, CommandFailed
from muster.agent.cli.spec import job_spec, spec_values
from muster.agent.cli.spec.job_spec import Draft
from muster.agent.cli.spec.spec_options import spec_options
from muster.supervisors.model.spec import FIELDS, Boot, JobSpec
from muster.supervisors.model.spec_fields import JOB_ID, Secret
from tests.unit.spec_samples import sample


def draft_of(**table: object) -> Draft:
    return job_spec.from_table({"command": ["x"], **table})


@pytest.mark.parametrize("field", [field for field in FIELDS.values() if field.key], ids=lambda field: field.name)
def test_every_field_can_be_in_a_file_and_behind_its_option(field, tmp_path, monkeypatch):
    value, toml, written = sample(field)
    if isinstance(field, Secret):
        (tmp_path / "secret").write_text(value)
        toml = written = f"@{tmp_path}/secret"
    draft = job_spec.from_table({field.key: toml})
    assert getattr(draft.asked, field.name) == value
    assert draft.written == {field.name: f"job.toml: {field.key}"}
    if field.option is None:
        return
    words = [field.option, written] if written else [field.option]

    @click.command()
    @spec_options
    def command(draft: Draft) -> None:
        assert getattr(draft.asked, field.name) == value
        assert draft.written == {field.name: field.option}

    command.main(words, standalone_mode=False)


def test_help_has_every_option_with_its_default():
    @click.command()
    @spec_options
    def command(draft: Draft) -> None: ...

    text = " ".join(command.get_help(click.Context(command)).split())
    assert {field.option for field in FIELDS.values() if field.option} <= set(text.split())
    assert "--nice N Scheduling priority of the ranks, -20 to 19." in text
    assert (
        "--ready-timeout DURATION Longest wait for the rank table, or for the nodes of an MPI job. Default: 10m."
        in text
    )


def test_one_node_may_be_said_as_to_torchrun():
    @click.command()
    @spec_options
    def command(draft: Draft) -> None:
        assert draft.written == {"command": "command"}

    command.main(["--nnodes", "1", "--", "x"], standalone_mode=False)


def test_a_file_with_everything():
    draft = job_spec.from_table(
        {
            "job-id": "demo",
            "command": ["python", "train.py"],
            "cards": "0,3",
            "env": {"A": "1", "N": 2},
            "workdir": "/tmp",
            "user": "nobody",
            "nodes": ["a", "b"],
            "node_rank": 1,
            "master_port": 29500,
            "skip_check": True,
            "max-runtime": "2h",
            "grace": [1, "500ms"],
            "labels": {"team": "x"},
            "boot": "msrun",
            "rank-table": "/user/config",
            "ready_timeout": "1m",
            "max-restarts": 3,
            "restart_backoff": "500ms",
            "pre-start": "/pre.sh",
            "pre-start-timeout": 5,
            "requirements": "/r.txt",
            "requirements_timeout": "1h",
            "epilog": "/end.sh",
            "epilog_timeout": 1.5,
            "limits": {"nofile": 65536, "memlock": "unlimited", "stack": "8m", "memory": "1.5g", "cpus": 2.5},
            "umask": "027",
            "nice": -5,
            "training-mode": "diagnosis",
            "on-hang": "restart",
            "max_hang_restarts": 2,
            "hang": {"hung_s": 900, "rule": "plain"},
            "notify_webhook": "https://example.org/hook",
            "notify_events": ["hung", "ended"],
        }
    )
    assert draft.spec() == JobSpec(
        job_id="demo",
        command=("python", "train.py"),
        env={"A": "1", "N": "2"},
        card_indices=(0, 3),
        workdir="/tmp",
        user="nobody",
        grace_steps=(1.0, 0.5),
        master_addr="a",
        master_port=29500,
        nodes=("a", "b"),
        node_rank=1,
        node_count=2,
        labels={"team": "x"},
        skip_check=True,
        max_runtime=7200.0,
        boot="msrun",
        rank_table="/user/config",
        ready_timeout=60.0,
        max_restarts=3,
        restart_backoff=0.5,
        pre_start="/pre.sh",
        pre_start_timeout=5.0,
        requirements="/r.txt",
        requirements_timeout=3600.0,
        epilog="/end.sh",
        epilog_timeout=1.5,
        limits={"nofile": 65536.0, "memlock": -1.0, "stack": 8.0 * 2**20, "memory": 1.5 * 2**30, "cpus": 2.5},
        umask=0o027,
        nice=-5,
        training_mode="diagnosis",
        on_hang="restart",
        max_hang_restarts=2,
        hang={"hung_s": "900", "rule": "plain"},
        notify_webhook="https://example.org/hook",
        notify_events=("hung", "ended"),
    )


@pytest.mark.parametrize("name", ["workdir", "rank_table", "pre_start", "requirements", "epilog"])
def test_a_relative_path_is_one_from_here(name, tmp_path, monkeypatch):
    """The daemon is elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert getattr(draft_of(**{name: "a/../b"}).spec(), name) == f"{tmp_path}/b"
    assert getattr(draft_of().spec(), name) == ""


def test_the_platforms_variables_fill_up_what_is_not_said():
    env = {"MA_RUN_METHOD": "torchrun", "MA_NUM_GPUS": "8", "VC_WORKER_HOSTS": "a,b", "VC_TASK_INDEX": "1"}
    made = draft_of(env=env).spec()
    assert (made.boot, made.card_count, made.nodes, made.node_rank) == ("torchrun", 8, ("a", "b"), 1)
    made = draft_of(env=env, boot="ranks", ranks=2, nodes=["c"]).spec()
    assert (made.boot, made.card_count, made.ranks, made.nodes, made.node_rank) == ("ranks", 0, 2, ("c",), 0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"comand": ["x"]}, "unknown key 'comand': did you mean 'command'"),
        ({"label": {}}, "did you mean 'labels'"),
        ({"zzz": 1}, "known keys are boot, boot_files, capabilities, cards, code, command"),
        ({"command": "a b"}, "muster uses no shell"),
        ({"command": ["a", 1]}, "list of texts"),
        ({"ranks": "2"}, "whole number"),
        ({"ranks": True}, "whole number"),
        ({"ranks": -1}, "whole number"),
        ({"cards": "0-"}, "number of cards"),
        ({"cards": "0,,3"}, "number of cards"),
        ({"cards": "-3"}, "number of cards"),
        ({"cards": "5-4"}, "'5-4': the range 5-4 goes down: write 4-5"),
        ({"cards": "0-999999999"}, "more than 4096"),
        ({"cards": [1.5]}, "whole number"),
        ({"skip_check": 1}, "true or false"),
        ({"max_runtime": "soon"}, "is not a duration"),
        ({"grace": [1, True]}, "must be text"),
        ({"nodes": "a,,b"}, "names of all nodes"),
        ({"job_id": "a", "job-id": "b"}, "the same key"),
        ({"env": ["A=1"]}, "must be a table"),
        ({"limits": {"nofile": "many"}}, "limits: nofile: 'many': must be a number"),
        ({"limits": {"nofile": True}}, "nofile: True: must be text"),
        ({"limits": ["nofile"]}, "must be a table"),
        ({"umask": "8"}, "must be octal"),
        ({"umask": "22222"}, "must be octal"),
        ({"umask": -1}, "whole number"),
        ({"nice": "x"}, "from -20 to 19"),
        ({"nice": True}, "from -20 to 19"),
        ({"max_restarts": "3"}, "whole number"),
        ({"boot": ["ranks"]}, "must be text"),
        ({"max_restart": 3}, "did you mean 'max_restarts'"),
    ],
)
def test_a_wrong_file_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        job_spec.from_table(table)


def test_a_wrong_variable_is_refused_without_its_value():
    with pytest.raises(ValueError, match="TOKEN") as caught:
        job_spec.from_table({"env": {"TOKEN": ["hunter2"]}})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("written", "meant"), [
    ("2", 2), ("0,3", (0, 3)), ("3,", (3,)), (4, 4), ([1], (1,)), ("0", 0), ("all", True), ("0-3", (0, 1, 2, 3)),
    ("4-5,7", (4, 5, 7)), ("0-1, 3", (0, 1, 3)), ("4-4", (4,)), ("4-5,", (4, 5)),
])  # fmt: skip
def test_cards(written, meant):
    assert spec_values.cards(written) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("65536", 65536.0), ("64g", 64.0 * 2**30), ("64GB", 64.0 * 2**30), ("1.5k", 1536.0), ("2T", 2.0 * 2**40),
        ("8m", 8.0 * 2**20), (" 1 ", 1.0), ("unlimited", -1.0), ("Infinity", -1.0), ("-1", -1.0), (0.5, 0.5), (7, 7.0),
    ],
)  # fmt: skip
def test_limits(written, meant):
    assert spec_values.limit(written) == meant


@pytest.mark.parametrize("written", ["", "g", "-2", "1e5", "0x10", "1.2.3", "5p", "nan", "²", None, []])
def test_what_is_no_limit(written):
    with pytest.raises(ValueError):
        spec_values.limit(written)


@pytest.mark.parametrize(("written", "meant"), [("022", 0o22), ("0o22", 0o22), ("0", 0), ("7777", 0o7777), (18, 18)])
def test_masks(written, meant):
    assert spec_values.from_toml(FIELDS["umask"], written) == meant


def test_options_win_over_the_file():
    draft = draft_of(
        ranks=2, env={"A": "1", "B": "1"}, job_id="file", labels={"l": "1"}, nice=5, max_restarts=1,
        limits={"nofile": 1.0, "core": 1.0},
    )  # fmt: skip
    options = {"cards": [1], "env": {"B": "2"}, "job_id": "option", "nice": 0, "limits": {"core": 0.0}}
    draft.override(job_spec.from_table(options))
    assert draft.spec() == JobSpec(
        job_id="option", command=("x",), card_indices=(1,), env={"A": "1", "B": "2"}, labels={"l": "1"},
        max_restarts=1, limits={"nofile": 1.0, "core": 0.0},
    )  # fmt: skip


def test_no_command_is_wrong_usage():
    with pytest.raises(CommandFailed, match="COMMAND is missing") as caught:
        job_spec.from_table({"command": []}).spec()
    assert caught.value.exit_code == 2


def test_all_that_is_wrong_is_reported_at_once():
    with pytest.raises(BadSpec) as caught:
        draft_of(job_id="a/b", ranks=0, nodes=["a", "b"]).spec()
    fields = [line.rpartition(": must")[0] for line in caught.value.message.splitlines()]
    assert fields == ["job.toml: ranks: 0", "", "job.toml: job_id: 'a/b'", ""]
    assert "--node-rank: is not set: give the number of this node, 0 to 1" in caught.value.message
    assert "--master-port: is not set: a job of several nodes needs a port" in caught.value.message
    assert "--master-addr" not in caught.value.message, "it is the first of the nodes"
    assert caught.value.exit_code == 2


SEVERAL = {"nodes": ["a", "b"], "node_rank": 1, "master_port": 29400}


def test_nodes_that_know_each_other_by_the_jobs_id_are_given_one():
    with pytest.raises(BadSpec, match=r"--job-id: is not set: .* boot mode mpi .* give NAME, the same on every node"):
        draft_of(**SEVERAL, boot="mpi").spec()
    assert draft_of(**SEVERAL, boot="mpi", job_id="wide").spec().job_id == "wide"


@pytest.mark.parametrize("boot", [*(mode for mode in Boot if mode is not Boot.MPI), "mpi on one node"])
def test_other_nodes_need_no_common_id(boot):
    mode, one, _ = boot.partition(" on one node")
    assert draft_of(**({} if one else SEVERAL), boot=mode).spec().job_id


def test_what_is_not_utf8_is_refused():
    with pytest.raises(BadSpec, match=r"job.toml: command\[1\]: is not UTF-8"):
        draft_of(command=["x", os.fsdecode(b"\xff")]).spec()


@pytest.mark.parametrize("program", ["train.py", "/usr/bin/python3", "./-x", "", "日本", "a b"])
def test_a_made_up_id_is_a_legal_one(program):
    first, second = job_spec.new_id((program, "x")), job_spec.new_id((program, "x"))
    assert first != second
    assert JOB_ID.fullmatch(first)


def test_the_message_says_what_the_spec_says():
    from muster.agent.messages import convert, spec_message

    full = JobSpec(
        job_id="demo",
        command=("a", "b"),
        env={"A": "1"},
        card_indices=(1, 2),
        workdir="/tmp",
        user="u",
        grace_steps=(0.5, 2.0),
        master_addr="a",
        master_port=1,
        node_rank=1,
        node_count=2,
        labels={"l": "v"},
        skip_check=True,
        max_runtime=0.25,
        boot="msrun",
        nodes=("a", "b"),
        rank_table="/t",
        ready_timeout=0.5,
        max_restarts=3,
        restart_backoff=0.0,
        pre_start="/p",
        pre_start_timeout=1.0,
        requirements="/r",
        requirements_timeout=2.0,
        epilog="/e",
        epilog_timeout=3.0,
        limits={"nofile": -1.0, "memlock": 1.0, "stack": 2.0, "core": 0.0, "nproc": 3.0, "memory": 4.0, "cpus": 0.5},
        umask=0,
        nice=-20,
        training_mode="normal",
        on_hang="stop",
        max_hang_restarts=0,
        hang={"hung_s": "900"},
        notify_webhook="https://example.org/hook",
        notify_events=("hung",),
        notify_secret="hunter2",
    )
    for one in (full, JobSpec(job_id="x", command=("a",)), JobSpec(job_id="x", command=("a",), card_count=2)):
        assert convert.spec_from(spec_message.spec_to(one, secrets=True)) == one


def test_a_secret_is_in_a_file_and_nowhere_else(tmp_path):
    (tmp_path / "secret").write_text("hunter2\n")
    assert job_spec.from_table({"notify-secret": f"@{tmp_path}/secret"}).asked.notify_secret == "hunter2"
    with pytest.raises(ValueError, match="must be @FILE") as caught:
        spec_values.from_toml(FIELDS["notify_secret"], "hunter2")
    assert "hunter2" not in str(caught.value)
    for content, says in ((b"", "has 0 lines"), (b"a\nb\n", "has 2 lines"), (b" \n", "is empty")):
        (tmp_path / "secret").write_bytes(content)
        with pytest.raises(ValueError, match=says):
            spec_values.from_toml(FIELDS["notify_secret"], f"@{tmp_path}/secret")


def test_a_webhook_in_a_file(tmp_path):
    url = "https://example.org/hook?token=hunter2"
    (tmp_path / "url").write_text(url + "\n")
    assert (
        spec_values.from_toml(FIELDS["notify_webhook"], f"@{tmp_path}/url")
        == job_spec.from_table({"notify-webhook": f"@{tmp_path}/url"}).asked.notify_webhook
        == url
    )
    for content, says in ((b"", "has 0 lines"), (b"a\nb\n", "has 2 lines"), (b"\xff", "is not text")):
        (tmp_path / "url").write_bytes(content)
        with pytest.raises(ValueError, match=says):
            spec_values.from_toml(FIELDS["notify_webhook"], f"@{tmp_path}/url")
    with pytest.raises(ValueError, match="/nowhere: No such file"):
        spec_values.from_toml(FIELDS["notify_webhook"], "@/nowhere")


def test_events_of_a_job_are_named_and_known():
    draft = job_spec.from_table(
        {"command": ["true"], "notify_events": "hung, ended", "notify_webhook": "http://example"}
    )
    assert draft.spec().notify_events == ("hung", "ended")
    for bad in ("hung,", "", [], [""]):
        with pytest.raises(ValueError, match="must be names of events, as in failed,hung"):
            job_spec.from_table({"notify_events": bad})
    with pytest.raises(
        BadSpec, match="notify_events: 'node_condition' is not an event that muster posts: allowed are started"
    ):
        draft_of(notify_webhook="http://example", notify_events=["node_condition"]).spec()
    with pytest.raises(BadSpec, match=r"notify_events: needs notify.webhook"):
        draft_of(notify_events=["hung"]).spec()
    with pytest.raises(BadSpec) as caught:
        draft_of(notify_webhook="ftp://example/hunter2", notify_events=["hung"]).spec()
    assert "hunter2" not in caught.value.message
