import json
import os
import pwd

import pytest

from muster.supervisors.launch.child import Account, explain_exec, read_unborn
from muster.supervisors.supervision_errors import NotStartable

# --- accounts ---------------------------------------------------------------------------------------------------------


def test_an_account_by_name_number_or_our_own():
    me = pwd.getpwuid(os.geteuid())
    expected = Account(me.pw_name, me.pw_uid, me.pw_gid, me.pw_dir, me.pw_shell)
    assert Account.of("") == Account.of(me.pw_name) == Account.of(str(me.pw_uid)) == expected


def test_a_number_without_an_entry_is_a_user_all_the_same():
    free = next(uid for uid in range(54321, 65000) if not _known(uid))
    assert Account.of(str(free)) == Account(str(free), free, free, "/", "/bin/sh")


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


@pytest.mark.parametrize("user", ["no-such-user-here", "a:b", "-1", " ", "99999999999", "4294967295", "²", "٣", "ü"])
def test_an_impossible_user_is_reported(user):
    with pytest.raises(NotStartable) as caught:
        Account.of(user)
    assert user in str(caught.value)


# --- the unborn file --------------------------------------------------------------------------------------------------


def test_no_file_means_nobody(tmp_path):
    assert read_unborn(tmp_path / "missing") == {}


def test_whole_lines_are_read_and_others_passed_over(tmp_path):
    path = tmp_path / "unborn"
    good = [json.dumps({"rank": i, "pid": 10 + i, "reason": "gate"}) for i in range(3)]
    path.write_text("\n".join([good[0], "garbage", "7", "{}", '{"pid": "x"}', '{"pid": null}', good[1], good[2][:-5]]))
    assert {pid: entry["rank"] for pid, entry in read_unborn(path).items()} == {10: 0, 11: 1}


@pytest.mark.parametrize(
    ("argv0", "entry", "text"),
    [
        ("x", {"reason": "exec", "errno": 2}, "x: not found in the PATH of the job's environment"),
        (
            "mpirun",
            {"reason": "exec", "errno": 2},
            "mpirun: not found in the PATH of the job's environment: it comes with",
        ),
        ("/opt/x/msrun", {"reason": "exec", "errno": 2}, "/opt/x/msrun: not found: it comes with MindSpore"),
        ("a/x", {"reason": "exec", "errno": 2}, "a/x: not found"),
        ("/bin/sh", {"reason": "exec", "errno": 2}, "/bin/sh: the file exists, but the interpreter or loader"),
        ("x", {"reason": "exec", "errno": 13}, "x: not executable (permission denied)"),
        ("x", {"reason": "exec", "errno": 8}, "x: not executable (not a program, and no #! line)"),
        ("x", {"reason": "exec", "errno": 12}, "x: cannot be executed: Cannot alloc"),
        ("x", {"reason": "prepare", "errno": 2, "cannot": "enter /x"}, "cannot enter /x: No such file or directory"),
        ("x", {"reason": "gate", "errno": 0, "cannot": "pass the gate"}, "the supervisor died before it started"),
        # Of a supervisor before an upgrade.
        ("x", {"reason": "prepare", "errno": 2, "text": "cannot enter /x: why"}, "cannot enter /x: why"),
    ],
)
def test_an_entry_in_words(argv0, entry, text):
    assert explain_exec(argv0, entry).startswith(text)
