"""Messages that are kept are those of the jobs as they are."""

import pytest

from muster.agent.api import job_messages
from muster.agent.api.job_messages import JobMessages
from muster.agent.host.state_folder import digest_key
from muster.agent.jobs.entry import Entry
from muster.agent.messages import convert
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.paths import Root


@pytest.fixture
def root(tmp_path):
    return Root.under(tmp_path)


def entry(root, job_id="j", ranks=2):
    job = Job(ranks=[Rank(rank, rank, rank) for rank in range(ranks)])
    return Entry(job_id, JobSpec(job_id, ("true",)), job, root.job(job_id), records=1)


def test_a_message_is_made_once_until_the_journal_grows(root, monkeypatch):
    made = []
    real = convert.job_to

    def counted(one, where, key):
        made.append(one.job_id)
        return real(one, where, key)

    monkeypatch.setattr(convert, "job_to", counted)
    messages, one = JobMessages(root), entry(root)
    assert messages.of(one) == messages.of(one) == real(one, root, digest_key(root.state))
    assert made == ["j"]
    one.job.ranks[0].pid = 7
    one.records += 1
    assert messages.of(one).ranks[0].pid == 7
    assert made == ["j", "j"]


def test_a_job_that_is_read_anew_or_given_up_is_another_one(root):
    messages, one = JobMessages(root), entry(root)
    assert len(messages.of(one).ranks) == 2
    one.start_over()
    one.job, one.records = Job(ranks=[Rank(0, 0, 0)]), 1  # as many records as before
    assert len(messages.of(one).ranks) == 1
    one.give_up("journal: line 3: is damaged")
    assert list(messages.of(one).warnings) == ["journal: line 3: is damaged"]


def test_a_deleted_job_whose_name_is_taken_again_is_another_one(root):
    messages = JobMessages(root)
    assert len(messages.of(entry(root)).ranks) == 2
    assert len(messages.of(entry(root, ranks=3)).ranks) == 3


def test_what_was_asked_for_last_is_kept_and_the_rest_is_bounded(root, monkeypatch):
    jobs = [entry(root, f"j{number}") for number in range(3)]
    messages = JobMessages(root)
    messages.of(jobs[0])
    monkeypatch.setattr(job_messages, "MAX_BYTES", 3 * messages.held_bytes)
    first, second, third = (messages.of(job) for job in jobs)
    assert messages.of(jobs[0]) is first
    messages.of(entry(root, "j3"))  # as large as the others: the one that was asked for longest ago has to go
    assert messages.of(jobs[2]) is third
    assert messages.of(jobs[0]) is first
    assert messages.of(jobs[1]) is not second
    huge = entry(root, "huge", 1000)
    assert messages.of(huge) is messages.of(huge), "the one that is asked for is kept, however large it is"
    assert messages.of(jobs[0]) is not first


def test_of_a_deleted_job_nothing_is_kept(root):
    messages, one = JobMessages(root), entry(root)
    first = messages.of(one)
    messages.forget("j")
    messages.forget("never-asked-for")
    assert messages.held_bytes == 0
    assert messages.of(one) is not first


def test_a_spec_cannot_be_guessed_by_its_digest(root):
    root.state.mkdir(exist_ok=True, parents=True)
    same, other = entry(root), entry(root, "other")
    same.job.digest = other.job.digest = same.spec.digest()
    told = JobMessages(root).of(same).spec_digest
    assert len(told) == 64 and told != same.job.digest
    assert JobMessages(root).of(other).spec_digest == told, "over a restart of the daemon, too"
