"""Between protobuf and the data model."""

from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from muster.agent import protobuf_times
from muster.agent.errors import InvalidRequest
from muster.agent.events.event_store import Event
from muster.agent.jobs.entry import Entry
from muster.agent.messages import convert, spec_message
from muster.supervisors.model import lifecycle
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec import FIELDS, JobSpec
from muster.supervisors.model.states import STEP, Outcome, State, StopCause
from muster.supervisors.paths import JobPaths, Root
from muster.v1 import job_pb2
from tests.unit.spec_samples import sample


def fields(message):
    with pytest.raises(InvalidRequest) as caught:
        convert.spec_from(message)
    return [violation.field for violation in caught.value.violations]


def entry(job, damaged=""):
    return Entry("j", JobSpec("j", ("true",)), job, JobPaths(Path("/state/jobs/j")), damaged)


def test_a_full_spec_survives_both_ways_but_for_its_secrets():
    message = job_pb2.JobSpec(
        job_id="a.b",
        command=["python3", "train.py", ""],
        env={"TOKEN": "secret"},
        cards=job_pb2.CardRequest(indices=[3, 1]),
        workdir="/data",
        user="nobody",
        grace_steps=[Duration(seconds=1, nanos=500_000_000), Duration()],
        master_addr="node0",
        master_port=29500,
        node_rank=1,
        node_count=2,
        labels={"team": "vision"},
        skip_check=True,
        max_runtime=Duration(seconds=60),
        boot="torchrun",
        nodes=["node0", "node1"],
        rank_table="/t.json",
        ready_timeout=Duration(seconds=2),
        max_restarts=3,
        restart_backoff=Duration(),
        pre_start="/pre.sh",
        pre_start_timeout=Duration(seconds=3),
        requirements="/r.txt",
        requirements_timeout=Duration(seconds=4),
        epilog="/end.sh",
        epilog_timeout=Duration(nanos=500_000_000),
        limits=job_pb2.Limits(
            nofile=-1, memlock_bytes=1 << 40, stack_bytes=0, core_bytes=1, nproc=2, memory_bytes=3, cpus=0.5
        ),
        umask=0,
        nice=-5,
        training_mode="normal",
        on_hang="restart",
        max_hang_restarts=0,
        hang={"hung_s": "900"},
        notify=job_pb2.Notify(webhook="https://example.org:8443/secret?secret", events=["hung"], secret="secret"),
    )
    spec = convert.spec_from(message)
    assert spec.env == {"TOKEN": "secret"}
    assert spec.grace_steps == (1.5, 0.0)
    assert spec.card_indices == (3, 1)
    assert spec.local_ranks == 2
    assert spec.max_runtime == 60.0
    assert (spec.restart_backoff, spec.umask, spec.epilog_timeout) == (0.0, 0, 0.5), "set to 0 is set"
    assert spec.limits == {
        "nofile": -1.0, "memlock": 2.0**40, "stack": 0.0, "core": 1.0, "nproc": 2.0, "memory": 3.0, "cpus": 0.5,
    }  # fmt: skip
    shown = spec_message.spec_to(spec)
    assert b"secret" not in shown.SerializeToString()
    message.env["TOKEN"] = ""
    message.notify.webhook, message.notify.secret = "https://example.org:8443/...", ""
    assert shown == message


def test_what_is_not_set_has_its_default():
    spec = convert.spec_from(job_pb2.JobSpec(command=["true"]))
    assert spec.job_id.startswith("job-")
    assert (spec.ranks, spec.local_ranks, spec.node_count, spec.max_runtime) == (0, 1, 1, None)
    assert (spec.umask, spec.limits, spec.restart_backoff, spec.boot, spec.nodes) == (None, {}, None, "ranks", ())
    assert not spec_message.spec_to(spec).HasField("limits")
    assert not spec_message.spec_to(spec).HasField("umask")
    assert spec.job_id != convert.spec_from(job_pb2.JobSpec(command=["true"])).job_id


def leaves(descriptor, prefix=""):
    """Path and descriptor of each field; those of `cards` and `notify` are fields of the spec, too."""
    for field in descriptor.fields:
        if field.message_type is not None and field.name in ("cards", "notify"):
            yield from leaves(field.message_type, f"{field.name}.")
        else:
            yield prefix + field.name, field


def test_the_message_has_the_fields_of_the_table():
    """Type by type: nothing is lost between the two."""
    found = dict(leaves(job_pb2.JobSpec.DESCRIPTOR))
    assert found.keys() == {field.api for field in FIELDS.values()}
    for field in FIELDS.values():
        wire = found[field.api]
        is_map = wire.message_type is not None and wire.message_type.GetOptions().map_entry
        assert wire.is_repeated == (field.many or is_map), field.name
        assert is_map == (isinstance(field.default, dict) and field.name != "limits"), field.name
        if wire.message_type is None and not field.many:
            assert wire.has_presence == (field.default is None or field.name == "node_rank"), field.name


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_every_field_survives_both_ways(field):
    spec = replace(JobSpec("j", ("true",)), **{field.name: sample(field)[0]})
    message = job_pb2.JobSpec.FromString(spec_message.spec_to(spec, secrets=True).SerializeToString())
    assert JobSpec(**spec_message.said_in(message, [])) == spec


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (job_pb2.JobSpec(), ["command"]),
        (job_pb2.JobSpec(command=["true"], job_id="../x"), ["job_id"]),
        (job_pb2.JobSpec(command=["true"], job_id="x" * 300), ["job_id"]),
        (job_pb2.JobSpec(command=["true"], ranks=100_000), ["ranks"]),
        (job_pb2.JobSpec(command=["true"], cards=job_pb2.CardRequest()), ["cards"]),
        (job_pb2.JobSpec(command=["true"], ranks=2, cards=job_pb2.CardRequest(count=1)), ["ranks"]),
        (job_pb2.JobSpec(command=["true"], cards=job_pb2.CardRequest(count=1, indices=[0])), ["cards"]),
        (job_pb2.JobSpec(command=["true"], grace_steps=[Duration(seconds=-1)]), ["grace_steps"]),
        (job_pb2.JobSpec(command=["true"], grace_steps=[Duration(seconds=90_000)]), ["grace_steps"]),
        (job_pb2.JobSpec(command=["true"], grace_steps=[Duration(seconds=1, nanos=-1)]), ["grace_steps[0]"]),
        (job_pb2.JobSpec(command=["true"], max_runtime=Duration()), ["max_runtime"]),
        (job_pb2.JobSpec(command=["true"], max_runtime=Duration(seconds=1 << 62)), ["max_runtime", "max_runtime"]),
        (job_pb2.JobSpec(command=["true"], env={"A=B": "1"}), ["env['A=B']"]),
        (job_pb2.JobSpec(command=["a\0b"], workdir="data"), ["command[0]", "workdir"]),
        (job_pb2.JobSpec(command=["true"], boot="horovod", umask=0o1000), ["boot", "umask"]),
        (job_pb2.JobSpec(command=["true"], limits=job_pb2.Limits(nofile=-2, cpus=0)), ["limits.nofile", "limits.cpus"]),
        (job_pb2.JobSpec(command=["true"], ready_timeout=Duration(seconds=-1)), ["ready_timeout"]),
        (job_pb2.JobSpec(command=["true"], restart_backoff=Duration(seconds=1, nanos=-1)), ["restart_backoff"]),
        (job_pb2.JobSpec(command=["true"], env={"VC_WORKER_HOSTS": "a,b"}), ["node_rank"]),
        (job_pb2.JobSpec(command=["true"], env={"VC_WORKER_HOSTS": "a,b", "VC_TASK_INDEX": "x"}), ["node_rank"]),
        (job_pb2.JobSpec(command=["true"], nodes=["a", "b"]), ["master_port"]),
        (job_pb2.JobSpec(command=["true"], nodes=["a", "b"], node_count=3), ["nodes", "master_port"]),
    ],
)
def test_what_is_wrong_is_named(message, expected):
    assert fields(message) == expected


def test_durations_out_of_bounds_are_refused():
    assert protobuf_times.bounded(Duration(), "grace", 10) == 0
    with pytest.raises(InvalidRequest, match="-1 s: must be 0 to 10 s"):
        protobuf_times.bounded(Duration(seconds=-1), "grace", 10)
    with pytest.raises(InvalidRequest, match="not a valid"):
        protobuf_times.bounded(Duration(nanos=2_000_000_000), "grace", 10)


def test_ranks_that_ended_say_how():
    exited = convert.rank_to(Rank(4, 0, 0, pid=10, outcome=Outcome.EXITED, status=7 << 8), False, "/l")
    assert (exited.outcome, exited.exit_code, exited.signal) == (job_pb2.RANK_OUTCOME_EXITED, 7, 0)
    killed = convert.rank_to(Rank(5, 1, 1, pid=11, outcome=Outcome.SIGNALLED, status=11 | 0x80), False, "/l")
    assert (killed.exit_code, killed.signal, killed.core_dumped) == (0, 11, True)
    assert killed.HasField("usage")


@pytest.mark.parametrize(
    ("pid", "ended", "outcome"),
    [
        (0, False, job_pb2.RANK_OUTCOME_UNSPECIFIED),
        (7, False, job_pb2.RANK_OUTCOME_UNSPECIFIED),
        (0, True, job_pb2.RANK_OUTCOME_NOT_STARTED),
        (7, True, job_pb2.RANK_OUTCOME_LOST),
    ],
)
def test_a_rank_without_an_outcome_is_never_taken_for_a_success(pid, ended, outcome):
    message = convert.rank_to(Rank(0, 0, 0, pid=pid), ended, "/l")
    assert message.outcome == outcome
    assert not message.HasField("started_at")


def test_a_job_with_its_ranks(tmp_path):
    job = lifecycle.Job(
        state=State.FAILED,
        digest="d",
        accepted_at=1000.25,
        ended_at=1001.5,
        ranks=[Rank(8, 0, 2, pid=5, outcome=Outcome.EXITED, status=256, lost_bytes=9)],
        checks=[{"item": "ulimit", "status": "OK", "seconds": 0.5}],
        warnings=["cannot be killed: 99"],
        verdict=lifecycle.Verdict(1, "rank 8 exited with code 1", 8, ("bad \udcff byte",), (), "RETRY_HERE"),
    )
    message = convert.job_to(entry(job), Root.under(tmp_path))
    assert message.state == job_pb2.JOB_STATE_FAILED
    assert message.spec_digest == ""
    assert message.accepted_at.ToNanoseconds() == 1_000_250_000_000
    assert not message.HasField("started_at")
    assert message.ranks[0].log_path == str(tmp_path / "log" / "j-proc-rank-8-device-2.txt")
    assert message.verdict.last_lines[0] == "bad \ufffd byte"
    assert message.verdict.first_failed_rank == 8
    assert message.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE
    assert list(message.warnings) == ["cannot be killed: 99", "rank 8: 9 bytes of output could not be written"]
    assert message.checks[0].seconds == 0.5


def test_a_job_between_two_attempts(tmp_path):
    job = lifecycle.Job(
        state=State.RESTARTING,
        attempt=1,
        world_size=8,
        restart_at=1010.5,
        step=Rank(STEP, 0, 0, outcome=Outcome.EXITED, status=0),
        step_name="pre_start",
        ranks=[Rank(4, 0, 0), Rank(5, 1, 1, argv=("torchrun", "x"), role="launcher")],
        past=[lifecycle.Attempt(0, 1000.0, 1001.0, 7, "rank 4 \udcff", 4, {4: 10, 5: 20})],
    )
    message = convert.job_to(entry(job), Root.under(tmp_path))
    assert (message.attempt, message.world_size, message.step) == (1, 8, "")
    assert message.restart_at.ToNanoseconds() == 1_010_500_000_000
    assert message.log_path == str(tmp_path / "log" / "j-muster-0.log")
    (past,) = message.past_attempts
    assert (past.number, past.exit_code, past.summary, past.first_failed_rank) == (0, 7, "rank 4 \ufffd", 4)
    assert (dict(past.log_ends), past.started_at.seconds, past.ended_at.seconds) == ({4: 10, 5: 20}, 1000, 1001)
    assert [(list(rank.command), rank.role) for rank in message.ranks] == [
        (["true"], "rank"), (["torchrun", "x"], "launcher")
    ]  # fmt: skip


def test_a_step_that_runs_is_named(tmp_path):
    job = lifecycle.Job(state=State.PREPARING, step=Rank(STEP, 0, 0, pid=9), step_name="pre_start")
    message = convert.job_to(entry(job), Root.under(tmp_path))
    assert message.step == "pre_start"
    assert not message.HasField("restart_at")
    job.state = State.LOST
    assert convert.job_to(entry(job), Root.under(tmp_path)).step == ""


def test_a_training_mode_is_shown_as_what_it_stands_for(tmp_path):
    shown = Entry("j", JobSpec("j", ("x",), training_mode="normal"), lifecycle.Job(), JobPaths(Path("/state/jobs/j")))
    assert dict(convert.job_to(shown, Root.under(tmp_path)).preset_env) == {"GLOG_v": "1", "MS_RDR_ENABLE": "0"}
    assert dict(convert.job_to(entry(lifecycle.Job()), Root.under(tmp_path)).preset_env) == {}


def test_a_damaged_job_says_why(tmp_path):
    stand_in = lifecycle.Job(state=State.LOST, verdict=lifecycle.Verdict(125, "journal: line 3: ..."))
    message = convert.job_to(entry(stand_in, damaged="journal: line 3: ..."), Root.under(tmp_path))
    assert message.state == job_pb2.JOB_STATE_LOST
    assert list(message.warnings) == ["journal: line 3: ..."]


def test_a_job_that_is_being_stopped_says_what_is_known():
    job = lifecycle.Job(state=State.STOPPING, stop=lifecycle.Stop(StopCause.REQUESTED, "alice", "maintenance"))
    verdict = convert.verdict_of(entry(job))
    assert verdict is not None
    assert verdict.stopped_by == "alice"
    assert "maintenance" in verdict.summary
    assert verdict.recommendation == job_pb2.RECOMMENDATION_UNSPECIFIED
    job.stop = lifecycle.Stop(StopCause.RANK_FAILED)
    # Both were noted in one batch, and so at one time: the order of the records tells.
    job.ranks = [
        Rank(0, 0, 0, pid=1, outcome=Outcome.EXITED, status=256, ended_at=1.0),
        Rank(1, 1, 1, pid=2, outcome=Outcome.SIGNALLED, status=11, ended_at=1.0),
    ]
    job.ends = [1, 0]
    for cause in set(StopCause) - {StopCause.MAX_RUNTIME}:  # its ranks are told to end: none of them failed
        job.stop = lifecycle.Stop(cause)
        verdict = convert.verdict_of(entry(job))
        assert verdict is not None
        assert (verdict.first_failed_rank, verdict.exit_code) == (1, 139)
        assert verdict.recommendation == job_pb2.RECOMMENDATION_UNSPECIFIED
    job.concluded = State.FAILED, lifecycle.Verdict(139, "rank 1 failed", 1, recommendation="FAIL")
    verdict = convert.verdict_of(entry(job))
    assert verdict is not None
    assert (verdict.summary, verdict.first_failed_rank) == ("rank 1 failed", 1)
    assert convert.verdict_of(entry(lifecycle.Job(state=State.RUNNING))) is None


def test_every_state_and_outcome_has_its_number():
    assert {convert.state_to(state) for state in State} == set(job_pb2.JobState.values()) - {0}
    assert {f"RANK_OUTCOME_{outcome}" for outcome in Outcome} < set(job_pb2.RankOutcome.keys())


def test_events():
    event = Event(5.5, "rank.exited", "j", 0, "m", 1.0, {"exit_code": "7"})
    message = convert.event_to(event)
    assert message.HasField("rank")
    assert message.attributes["exit_code"] == "7"
    assert not convert.event_to(Event(5.5, "job.running", "j")).HasField("rank")


def test_usage_that_could_not_be_read_is_not_set():
    lost = convert.rank_to(Rank(0, 0, 0, pid=7, outcome=Outcome.LOST), True, "")
    assert lost.HasField("usage") and not lost.usage.ListFields()
