"""The API's messages as words: names of states, how a rank ended, times."""

from google.protobuf.timestamp_pb2 import Timestamp

from muster.agent.text import clean, local, numbers, size, span
from muster.v1 import job_pb2


def state(value: "job_pb2.JobState.ValueType") -> str:
    """RUNNING for JOB_STATE_RUNNING; a number that this version does not know stays a number."""
    try:
        name = job_pb2.JobState.Name(value).removeprefix("JOB_STATE_")
    except ValueError:
        return str(value)
    return "UNKNOWN" if name == "UNSPECIFIED" else name


def advice(job: job_pb2.Job) -> str:
    """As `advice_of`, of a job that has ended; else ""."""
    return advice_of(job.verdict) if job.HasField("ended_at") else ""


def advice_of(verdict: job_pb2.Verdict) -> str:
    """RETRY_ELSEWHERE: the node has a fault: isolate it. "" if nothing is to be done."""
    name = job_pb2.Recommendation.Name(verdict.recommendation).removeprefix("RECOMMENDATION_")
    if name in ("NONE", "UNSPECIFIED"):
        return ""
    return name + (f": {clean(verdict.recommendation_reason)}" if verdict.recommendation_reason else "")


def hang(job: job_pb2.Job) -> str:
    """HUNG (spin); "" if the job is not known to hang."""
    found = job.hang
    if found.verdict not in ("SUSPECT", "HUNG", "DRIVER_HANG"):
        return ""
    return f"{found.verdict} ({found.kind})" if found.kind else found.verdict


def outcome(rank: job_pb2.Rank, job: job_pb2.Job) -> str:
    """How a rank ended, or its present state."""
    value = rank.outcome
    if value == job_pb2.RANK_OUTCOME_UNSPECIFIED:
        return "running" if rank.pid and job.HasField("started_at") else "waiting"
    try:
        return job_pb2.RankOutcome.Name(value).removeprefix("RANK_OUTCOME_").lower()
    except ValueError:
        return str(value)


def status(rank: job_pb2.Rank) -> str:
    """The exit code or signal of a reaped rank; "" for any other."""
    if rank.signal:
        from muster.probes.kernel.endings import signal_name

        return signal_name(rank.signal) + (" (core dumped)" if rank.core_dumped else "")
    waited_for = rank.outcome not in (
        job_pb2.RANK_OUTCOME_UNSPECIFIED,
        job_pb2.RANK_OUTCOME_LOST,
        job_pb2.RANK_OUTCOME_NOT_STARTED,
    )
    return str(rank.exit_code) if waited_for or rank.exit_code else ""


def step(job: job_pb2.Job) -> str:
    """The step that runs, and how far it is with what it copies."""
    if not job.HasField("staging"):
        return job.step
    told = job.staging
    text = f"{job.step}: {told.files_done} of {told.files} files, {size(told.bytes_done)} of {size(told.bytes)}"
    text += f", {clean(told.now)}" if told.now else ""
    return text + (f"; {told.retries} retries, the last one after: {clean(told.error)}" if told.retries else "")


def gap(job: job_pb2.Job) -> str:
    """The words for a job that is losing output; "" for any other."""
    return "losing output" if job.HasField("log_gap") or any(r.HasField("output_gap") for r in job.ranks) else ""


def stuck(job: job_pb2.Job) -> str:
    """How the job's supervisor is stuck now; "" if it is not."""
    word = job.supervisor_stuck
    return f"supervisor {'is ' * (word != 'hangs')}{word}" if word else ""


def living(job: job_pb2.Job) -> str:
    """Living processes of a job whose journal is damaged."""
    count = len(job.living)
    return f"{count} process{'es' if count != 1 else ''} still run{'s' if count == 1 else ''}" if count else ""


def seconds(stamp: Timestamp) -> float:
    """Seconds since the epoch; 0 if not set."""
    return stamp.ToNanoseconds() / 1e9


def when(stamp: Timestamp) -> str:
    """Local time; "-" if not set."""
    return local(seconds(stamp))


def lasted(job: job_pb2.Job, now: float) -> str:
    """How long the job's ranks have run; "-" if they never did."""
    if not job.HasField("started_at"):
        return "-"
    ends = [seconds(rank.ended_at) for rank in job.ranks]
    end = max(ends) if ends and all(ends) else seconds(job.ended_at) or now  # the epilog follows the last rank
    return span(max(0.0, end - seconds(job.started_at)))


def devices(job: job_pb2.Job) -> str:
    """0-3,7: the cards that the job holds; "-" on a host without cards."""
    if not (job.spec.cards.count or job.spec.cards.indices):
        return "-"
    return numbers(rank.device for rank in job.ranks)


def cpu(usage: job_pb2.Usage) -> str:
    """User and system time in seconds; "-" if unknown."""
    if not usage.HasField("cpu_user_seconds"):
        return "-"
    return f"{usage.cpu_user_seconds:.2f}+{usage.cpu_system_seconds:.2f}s"


def memory(usage: job_pb2.Usage) -> str:
    """Peak memory; "-" if unknown."""
    return size(usage.max_rss_bytes) if usage.HasField("max_rss_bytes") else "-"


def transferred(usage: job_pb2.Usage) -> str:
    """Bytes through read- and write-like calls; "-" if unknown."""
    return f"{size(usage.read_chars)}/{size(usage.write_chars)}" if usage.HasField("read_chars") else "-"
