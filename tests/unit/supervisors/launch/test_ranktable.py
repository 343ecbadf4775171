import ast
import copy
import json
import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.supervisors.launch.modes import ranktable, ranktable_json
from muster.supervisors.launch.modes.ranktable import (
    Device,
    Instance,
    RankTable,
    RankTableError,
    Server,
    read,
    server_of,
)
from tests.tables import parse

NAME = "/user/config/jobstart_hccl.json"


def device(device_id, device_ip="", **more):
    return {"device_id": device_id, "device_ip": device_ip, **more}


def instance(pod_name, server_id, *devices):
    return {"pod_name": pod_name, "server_id": server_id, "devices": list(devices)}


def template2(*groups):
    """A completed table of groups, each a list of instances, with the counts that belong to them."""
    listed = [
        {
            "group_name": f"group{i}",
            "device_count": str(sum(len(one["devices"]) for one in instances)),
            "instance_count": str(len(instances)),
            "instance_list": list(instances),
        }
        for i, instances in enumerate(groups)
    ]
    return {"status": "completed", "group_count": str(len(listed)), "group_list": listed}


def template1(**servers):
    listed = [{"server_id": name.replace("_", "."), "device": devices} for name, devices in servers.items()]
    return {"status": "completed", "version": "1.0", "server_count": str(len(listed)), "server_list": listed}


def text_of(document):
    return json.dumps(document).encode()


def table_of(document):
    table = parse(text_of(document), NAME)
    assert table is not None
    return table


def error_of(document):
    data = document if isinstance(document, bytes) else text_of(document)
    with pytest.raises(RankTableError) as caught:
        parse(data, NAME)
    return caught.value


def two_nodes():
    return template2(
        [
            instance("job-x-10", "10.0.0.2", device("0", "29.0.0.3"), device("1", "29.0.0.4")),
            instance("job-x-9", "10.0.0.1", device("3", "29.0.0.1"), device("2", "29.0.0.2")),
        ]
    )


def two_servers():
    return template1(
        node_0=[device("0", "29.0.0.1", rank_id="0"), device("1", "29.0.0.2", rank_id="1")],
        node_1=[device("0", "29.0.0.3", rank_id="3"), device("1", "29.0.0.4", rank_id="2")],
    )


# --- what a table says ------------------------------------------------------------------------------------------------


def test_the_platforms_example_becomes_template_1():
    document = template2([instance("jobxxxxxxxx-job-trainjob-0", "192.168.0.25", device("4", "192.1.10.254"))])
    assert json.loads(ranktable.to_template1(table_of(document))) == {
        "status": "completed",
        "version": "1.0",
        "server_count": "1",
        "server_list": [
            {
                "server_id": "192.168.0.25",
                "device": [{"device_id": "4", "device_ip": "192.1.10.254", "rank_id": "0"}],
            }
        ],
    }


def test_the_two_tables_of_the_documentation_are_the_same():
    text = Path(__file__).parents[4].joinpath("docs", "reference", "rank-tables.md").read_text(encoding="utf-8")
    second, first = map(json.loads, re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    assert json.loads(ranktable.to_template1(table_of(second))) == first


def test_ranks_follow_the_number_of_the_instance_and_not_the_file():
    assert table_of(two_nodes()) == RankTable(
        2,
        (
            Server("10.0.0.1", (Device("3", "29.0.0.1", 0), Device("2", "29.0.0.2", 1))),
            Server("10.0.0.2", (Device("0", "29.0.0.3", 2), Device("1", "29.0.0.4", 3))),
        ),
        (Instance("job-x-9", "10.0.0.1"), Instance("job-x-10", "10.0.0.2")),
    )


def test_ranks_go_on_over_groups_and_a_server_has_its_devices_together():
    table = table_of(
        template2(
            [instance("a-1", "s1", device("1")), instance("a-0", "s0", device("0"))],
            [instance("b-0", "s1", device("0")), instance("b-1", "s0", device("1"))],
        )
    )
    assert table.size == 4
    assert [(s.server_id, [(d.device_id, d.rank) for d in s.devices]) for s in table.servers] == [
        ("s0", [("0", 0), ("1", 3)]),
        ("s1", [("1", 1), ("0", 2)]),
    ]


def test_only_the_first_group_is_sorted_as_the_launcher_does():
    first = [instance("a-1", "s1", device("1")), instance("a-0", "s0", device("0"))]
    second = [instance("b-9", "s3", device("0")), instance("b-last", "s2", device("0"))]
    table = table_of(template2(first, second))
    assert [known.pod_name for known in table.instances] == ["a-0", "a-1", "b-9", "b-last"]
    assert [server.server_id for server in table.servers] == ["s0", "s1", "s3", "s2"]


def test_a_group_without_devices_has_no_servers():
    document = template2([instance("ps-0", "s0")], [instance("w-0", "s1", device("0"))])
    table = table_of(document)
    assert [server.server_id for server in table.servers] == ["s1"]
    assert [known.pod_name for known in table.instances] == ["ps-0", "w-0"]


def test_an_instance_without_devices_keeps_its_server_where_its_group_has_some():
    table = table_of(template2([instance("w-0", "s0"), instance("w-1", "s1", device("0"))]))
    assert [(server.server_id, len(server.devices)) for server in table.servers] == [("s0", 0), ("s1", 1)]


@pytest.mark.parametrize(
    "document",
    [template2(), template2([]), template2([instance("w-0", "s0")]), template1(), template1(node_0=[])],
)
def test_a_table_may_have_no_device(document):
    assert table_of(document).size == 0


def test_null_is_no_devices():
    document = template2([instance("w-0", "s0")])
    document["group_list"][0]["instance_list"][0]["devices"] = None
    assert table_of(document).size == 0


def test_template_1_keeps_the_order_of_the_file_and_its_ranks():
    table = table_of(two_servers())
    assert (table.template, table.size, table.instances) == (1, 4, ())
    assert [[(d.device_id, d.rank) for d in server.devices] for server in table.servers] == [
        [("0", 0), ("1", 1)],
        [("0", 3), ("1", 2)],
    ]


def test_template_1_may_have_more_than_is_needed():
    document = two_servers()
    document |= {"version": "1.2", "super_pod_list": [{"super_pod_id": "0", "x": "X"}]}
    document["server_list"][0]["device"][0]["super_device_id"] = 37748736
    # Numbers that Python would not read, or only as infinite, hurt nobody where they stand.
    data = text_of(document).replace(b'"X"', b"[1e999, " + b"9" * 5000 + b"]")
    assert parse(data, NAME) == table_of(two_servers())


def test_numbers_may_be_numbers():
    def as_numbers(at):
        if isinstance(at, dict):
            return {
                key: int(value) if key.endswith(("_count", "device_id", "rank_id")) else as_numbers(value)
                for key, value in at.items()
            }
        return [as_numbers(value) for value in at] if isinstance(at, list) else at

    for document in (two_nodes(), two_servers()):
        assert as_numbers(document) != document
        assert table_of(as_numbers(document)) == table_of(document)


def test_equal_tables_may_come_from_different_files():
    data = text_of(two_nodes())
    assert parse(data, "/a.json") == parse(data, "/b.json")


# --- this node --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pod_name", "index"), [("job-x-9", 0), ("job-x-10", 1), (None, 0), ("", 0)])
def test_a_node_is_found_by_the_name_of_its_instance(pod_name, index):
    assert server_of(table_of(two_nodes()), pod_name=pod_name, host_ip="10.0.0.7") == index


@pytest.mark.parametrize(("host_ip", "index"), [("node.0", 0), ("node.1", 1), (None, 0), ("", 0)])
def test_a_node_is_found_by_its_address(host_ip, index):
    assert server_of(table_of(two_servers()), pod_name="job-x-77", host_ip=host_ip) == index


def test_a_single_server_is_this_node_with_any_address():
    table = table_of(template1(node_0=[device("0", rank_id="0")]))
    assert server_of(table, pod_name=None, host_ip="10.9.9.9") == 0


def test_the_first_instance_is_the_first_that_has_devices():
    table = table_of(template2([instance("ps-0", "s9")], [instance("w-0", "s0", device("0"))]))
    assert server_of(table, pod_name=None, host_ip=None) == 0
    assert server_of(table, pod_name="w-0", host_ip=None) == 0


@pytest.mark.parametrize(
    ("document", "place", "words"),
    [
        (two_nodes(), "group_list", ["'job-x-8'", "'job-x-9', 'job-x-10'", "MA_CURRENT_INSTANCE_NAME"]),
        (two_servers(), "server_list", ["'10.0.0.8'", "'node.0', 'node.1'", "MA_CURRENT_HOST_IP"]),
        (template2(), "group_list", ["'job-x-8'", "it lists none"]),
        (template1(), "server_list", ["is empty"]),
        (template2([instance("job-x-8", "s0")]), "group_list", ["'job-x-8'", "has no devices"]),
    ],
)
def test_a_table_without_this_node_says_which_there_are(document, place, words):
    with pytest.raises(RankTableError) as caught:
        server_of(table_of(document), pod_name="job-x-8", host_ip="10.0.0.8")
    assert str(caught.value).startswith(f"{NAME}: {place}: ")
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_table_whose_instances_all_have_no_device_has_no_first():
    with pytest.raises(RankTableError, match="every instance has no devices"):
        server_of(table_of(template2([instance("a-0", "s0")])), pod_name=None, host_ip=None)


def test_of_many_instances_only_some_are_named():
    document = template2([instance(f"w-{i}", f"s{i}", device("0")) for i in range(100)])
    with pytest.raises(RankTableError, match=r"'w-7' and 92 more"):
        server_of(table_of(document), pod_name="w-100", host_ip=None)


# --- where it is ------------------------------------------------------------------------------------------------------


def test_a_folder_means_the_file_in_it(tmp_path):
    (tmp_path / "odd.json").mkdir()
    (tmp_path / "plain").touch()
    assert ranktable.path_of(str(tmp_path)) == tmp_path / "jobstart_hccl.json"
    assert ranktable.path_of(f"{tmp_path}/") == tmp_path / "jobstart_hccl.json"
    assert ranktable.path_of(f"{tmp_path}/odd.json") == tmp_path / "odd.json" / "jobstart_hccl.json"
    assert ranktable.path_of(f"{tmp_path}/plain") == tmp_path / "plain"


def test_what_is_not_there_yet_is_reported_by_its_name(tmp_path):
    assert ranktable.path_of(f"{tmp_path}/later/table.json") == tmp_path / "later" / "table.json"
    assert ranktable.path_of(f"{tmp_path}/later") == tmp_path / "later" / "jobstart_hccl.json"


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_table_comes_in_stages(tmp_path):
    path = tmp_path / "jobstart_hccl.json"
    data = json.dumps(two_nodes(), indent=1).encode()
    stages = [
        (None, "does not exist"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b'{"status": "initializing"}', "status: is 'initializing', not yet 'completed'"),
    ]
    for contents, why in stages:
        if contents is not None:
            path.write_bytes(contents)
        assert read(path) is None
        assert ranktable.pending(path) == f"{path}: {why}"
    path.write_bytes(data[:100])
    for look in (read, ranktable.pending):
        with pytest.raises(RankTableError) as caught:
            look(path)
        assert caught.value.torn
    path.write_bytes(data)
    assert read(path) == table_of(two_nodes())
    assert ranktable.pending(path) == ""


def test_a_link_is_followed_as_a_mounted_configmap_needs(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "jobstart_hccl.json").write_bytes(text_of(two_nodes()))
    link = tmp_path / "jobstart_hccl.json"
    link.symlink_to("..data/jobstart_hccl.json")
    table = read(ranktable.path_of(str(tmp_path)))
    assert table is not None and table.name == str(link)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(RankTableError, match=f"^{re.escape(str(path))}: is not a regular file"):
            read(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match=re.escape(str(tmp_path / "s"))):
            read(tmp_path / "s")


def test_what_the_system_refuses_is_an_error_of_the_system(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        read(tmp_path / "loop")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        read(tmp_path / "file" / "jobstart_hccl.json")


def test_no_descriptor_is_left_open(tmp_path):
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(RankTableError):
            read(tmp_path)
        (tmp_path / "t.json").write_bytes(text_of(two_nodes()))
        assert read(tmp_path / "t.json") is not None
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        RankTableError, match=f"^{re.escape(str(path))}: has {1 << 40} bytes, at most 67108864 are allowed"
    ):
        read(path)


def test_a_file_that_does_not_tell_its_size_is_not_read_on_and_on(monkeypatch):
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    monkeypatch.setattr(ranktable, "MAX_BYTES", 10)
    with pytest.raises(RankTableError, match="has 11 bytes, at most 10 are allowed"):
        read(path)


# --- what is not JSON -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"status": "completed",\n "group_count": x}', "line 2 column 17: is not JSON: "),
        (b'{"status": "completed"}}', "line 1 column 24: is not JSON: Extra data"),
        (b'{"status": "completed"} x', "line 1 column 25: is not JSON: Extra data"),
        (b'{"status" "completed"}', "line 1 column 11: is not JSON: "),
        (b'{"a": "b\nc"}', "line 1 column 9: is not JSON: Invalid control character"),
        (b"// table\n{}", "line 1 column 1: is not JSON: "),
        (b"hello", "line 1 column 1: is not JSON: "),
        (b"\0\0\0\0", "line 1 column 1: is not JSON: "),
        (b"\xef\xbb\xbf{}", "line 1 column 1: is not JSON: "),
        (b'{"a":\n "\xc3\xa4\xff"}', "line 2 column 4: is not UTF-8: "),
        (json.dumps(two_nodes()).encode("utf-16"), "line 1 column 1: is not UTF-8: "),
        (b"[" * 100_000, "is nested too deep"),
        (b'{"a":' * 200_000, "is nested too deep"),
        (b"[]", "must be an object with status, is a list"),
        (b"null", "must be an object with status, is null"),
        (b'"completed"', "must be an object with status, is 'completed'"),
        (b"{}", "has no status"),
        (b'{"status": "completed"}', "has neither group_list (template 2) nor server_list (template 1)"),
    ],
)
def test_what_is_no_json_is_reported_by_line_and_column(data, message):
    error = error_of(data)
    assert str(error).startswith(f"{NAME}: {message}")
    assert not error.torn


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": {"b": 1, "b": 2}}', "a.b: occurs twice in the same object"),
        (b'{"a": [{}, {"b": 1, "c": {"d": 1, "d": 2}, "b": 2}]}', "a[1].b: occurs twice"),
        (b'{"status": "initializing", "status": "completed"}', "status: occurs twice"),
        (b'{"": 1, "": 2}', "['']: occurs twice"),
        (b'{"a": {"x.y": NaN}}', "a['x.y']: NaN is not a JSON number"),
        (b'{"a": [0, -Infinity, NaN]}', "a[1]: -Infinity is not a JSON number"),
    ],
)
def test_what_python_reads_and_json_has_not_is_refused(data, message):
    assert str(error_of(data)).startswith(f"{NAME}: {message}")


def test_a_document_of_too_many_parts_is_refused(monkeypatch):
    document = two_nodes()
    parts = text_of(document).count(b"{") + text_of(document).count(b"[")
    monkeypatch.setattr(ranktable_json, "MAX_PARTS", parts)
    assert table_of(document).size == 4
    monkeypatch.setattr(ranktable_json, "MAX_PARTS", parts - 1)
    assert f"has more than {parts - 1} objects and lists" in str(error_of(document))


@pytest.mark.parametrize("depth", [500, 900])
def test_a_deep_place_is_named(depth):
    error = error_of(b'{"status":"completed","a":' + b"[" * depth + b"NaN" + b"]" * depth + b"}")
    assert error.place == "a" + "[0]" * depth


WITH_EVERYTHING = {
    "text": 'ä \U0001f600 "quoted" \\ \n',
    "numbers": [0, -1, 1.5, -2.5e-10, 1e20],
    "words": [True, False, None, {}],
    **two_nodes(),
}


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_all_that_is_missing_at_the_end_may_still_come(layout):
    data = json.dumps(WITH_EVERYTHING, **layout).encode()
    assert parse(data, NAME) is not None
    for end in range(1, len(data)):
        error = error_of(data[:end])
        assert error.torn, (data[:end][-40:], str(error))
        assert re.match(rf"{NAME}: line \d+ column \d+: (ends too early|is not UTF-8): ", str(error))


# --- what contradicts itself ------------------------------------------------------------------------------------------


def steps_of(place):
    """`a[0].b['x.y']` as the keys and indices that lead there."""
    found = re.findall(r"\.?([^.\[\]]+)|\[(\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]", place)
    return [plain or ast.literal_eval(bracketed) for plain, bracketed in found]


def at(document, place):
    """The value at a place; KeyError, IndexError or TypeError if there is no such place."""
    for step in steps_of(place):
        document = document[step]
    return document


def put(document, place, value):
    """A copy with another value at a place; a key that is not there comes new, and DELETED goes."""
    changed = copy.deepcopy(document)
    *way, last = steps_of(place)
    inner = changed
    for step in way:
        inner = inner[step]
    if value is DELETED:
        del inner[last]
    else:
        inner[last] = value
    return changed


DELETED = object()
GROUP, PODS, CARD = "group_list[0]", "group_list[0].instance_list", "group_list[0].instance_list[1].devices[1]"
LAST = "server_list[1].device[1]"
A_NUMBER = "@: must be a whole number from 0 to 2147483647, is "
A_NAME = "@: must be a name, a string that can be printed, is "


# "@" is the place that was changed.
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("status", DELETED, "has no status"),
        ("status", 1, "@: must be a string that can be printed, is 1"),
        ("server_list", [], "@: is given together with group_list"),
        ("group_count", "2", "@: is 2, but group_list has 1"),
        (f"{GROUP}.instance_count", 3, "@: is 3, but instance_list has 2"),
        (f"{GROUP}.device_count", "0", "@: is 0, but the instances of the group together have devices: 4"),
        (f"{GROUP}.device_count", "-4", f"{A_NUMBER}'-4'"),
        (f"{GROUP}.device_count", 4.0, f"{A_NUMBER}4"),
        (f"{GROUP}.device_count", True, f"{A_NUMBER}true"),
        (f"{GROUP}.device_count", "\u0664", A_NUMBER),
        (f"{GROUP}.device_count", 10**30, f"{A_NUMBER}1e+30"),
        (f"{GROUP}.device_count", "9" * 5000, f"{A_NUMBER}'{'9' * 60}'... (5000 characters)"),
        (f"{PODS}[1].pod_name", "job-x-10", f"@: 'job-x-10' occurs twice: also at {PODS}[0].pod_name"),
        (f"{PODS}[1].pod_name", "tf-bae41", "@: is 'tf-bae41': must end in '-' and a number"),
        (f"{PODS}[1].pod_name", "job-x-", "@: is 'job-x-': must end in '-' and a number"),
        (f"{PODS}[1].pod_name", "a\n-9", f"{A_NAME}'a\\n-9'"),
        (f"{PODS}[1].server_id", "\ud800", f"{A_NAME}'\\ud800'"),
        (f"{PODS}[1].server_id", "", f"{A_NAME}''"),
        (f"{PODS}[1].devices", {}, "@: must be a list, is an object"),
        (CARD, "1", "@: must be an object with device_id, is '1'"),
        (CARD, {}, "@: has no device_id"),
        (f"{CARD}.device_id", "3", f"@: '3' occurs twice on server '10.0.0.1': also at {PODS}[1].devices[0].device_id"),
        (f"{CARD}.device_id", "03", "@: '03' occurs twice on server '10.0.0.1': also at "),
        (f"{CARD}.device_ip", "29.0.0.1", f"@: '29.0.0.1' occurs twice: also at {PODS}[1].devices[0].device_ip"),
        (f"{CARD}.device_ip", "29.0.0", "@: is '29.0.0': must be an IP address, or empty"),
        (f"{CARD}.device_ip", None, "@: must be a string that can be printed, is null"),
        (f"{CARD}.device_ip", DELETED, f"{CARD}: has no device_ip"),
    ],
)
def test_what_is_wrong_in_template_2_is_reported_with_its_place(place, value, message):
    error = error_of(put(two_nodes(), place, value))
    assert str(error).startswith(f"{NAME}: {message.replace('@', place)}")
    assert not error.torn


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("server_count", "1", "@: is 1, but server_list has 2"),
        ("server_list[1].server_id", "node.0", "@: 'node.0' occurs twice: also at server_list[0].server_id"),
        ("server_list[1].device", None, "@: must be a list, is null"),
        ("server_list[1].device", [1], "@[0]: must be an object with rank_id, is 1"),
        (f"{LAST}.rank_id", "0", "@: '0' occurs twice: also at server_list[0].device[0].rank_id"),
        (f"{LAST}.rank_id", "4", "@: is 4, but the table has 4 devices: ranks are 0 to 3"),
        (f"{LAST}.rank_id", DELETED, f"{LAST}: has no rank_id"),
        (
            f"{LAST}.device_id",
            "0",
            "@: '0' occurs twice on server 'node.1': also at server_list[1].device[0].device_id",
        ),
        (f"{LAST}.device_ip", "29.0.0.1", "@: '29.0.0.1' occurs twice: also at server_list[0].device[0].device_ip"),
    ],
)
def test_what_is_wrong_in_template_1_is_reported_with_its_place(place, value, message):
    error = error_of(put(two_servers(), place, value))
    assert str(error).startswith(f"{NAME}: {message.replace('@', place)}")
    assert not error.torn


def test_the_same_address_written_otherwise_is_the_same():
    document = put(two_nodes(), f"{CARD}.device_ip", "fe80::0:1")
    assert table_of(document).size == 4
    assert "occurs twice" in str(error_of(put(document, f"{PODS}[0].devices[0].device_ip", "fe80::1")))


def test_one_device_twice_over_two_instances_of_a_server():
    document = template2([instance("w-0", "s0", device("7")), instance("w-1", "s0", device("7"))])
    place = f"{PODS}[1].devices[0].device_id"
    message = f"{place}: '7' occurs twice on server 's0': also at {PODS}[0].devices[0].device_id"
    assert str(error_of(document)) == f"{NAME}: {message}"


def places(document, prefix=""):
    """Every place in a document, itself left out."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        plain = isinstance(key, str) and key.isidentifier()
        place = f"{prefix}.{key}".removeprefix(".") if plain else f"{prefix}[{key!r}]"
        yield place
        yield from places(value, place)


@pytest.mark.parametrize("document", [two_nodes(), two_servers()], ids=["template2", "template1"])
def test_every_field_that_is_needed_is_missed_where_it_should_be(document):
    for place in places(document):
        steps = steps_of(place)
        if isinstance(steps[-1], int) or steps[-1] in ("version", "group_name", "group_list", "server_list"):
            continue
        error = error_of(put(document, place, DELETED))
        assert (error.what, steps_of(error.place)) == (f"has no {steps[-1]}", steps[:-1])


@pytest.mark.parametrize("wrong", [None, True, 1.5, -1, 2**31, [], {}, "", "\0"], ids=repr)
@pytest.mark.parametrize("document", [two_nodes(), two_servers()], ids=["template2", "template1"])
def test_every_field_of_a_wrong_type_is_an_error_at_that_field(document, wrong):
    for place in places(document):
        last = steps_of(place)[-1]
        if last in ("version", "group_name") or (last in ("status", "device_ip") and wrong == ""):
            continue  # these may be so
        if place == "server_list[1].device" and wrong == []:
            continue  # and so may the last server have no devices
        error = error_of(put(document, place, wrong))
        named = [f"{place}: ", f"also at {place}"]
        if isinstance(wrong, list) or (last == "devices" and wrong is None):  # a list of nothing contradicts its count
            named += [
                f"{GROUP}.device_count: ",
                f"{GROUP}.instance_count: ",
                "group_count: ",
                "server_count: ",
                "_id: is ",
            ]
        assert any(name in str(error) for name in named), str(error)


# --- properties -------------------------------------------------------------------------------------------------------


@st.composite
def tables(draw):
    """Documents of template 2 with nothing wrong in them, their instances in any order."""
    number = draw(st.sampled_from([str, int]))
    pool = [f"10.0.0.{i}" for i in range(4)]
    free = {server_id: draw(st.permutations(range(36))) for server_id in pool}  # all instances may be on one
    address = iter(range(10**6))
    groups = []
    for g, sizes in enumerate(draw(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=3))):
        numbers = draw(st.lists(st.integers(0, 30), min_size=len(sizes), max_size=len(sizes), unique=True))
        instances = []
        for size, pod in zip(sizes, numbers, strict=True):
            server_id = draw(st.sampled_from(pool))
            devices = [
                device(number(free[server_id].pop()), f"29.0.0.{next(address)}" if draw(st.booleans()) else "")
                for _ in range(size)
            ]
            instances.append(instance(f"job-g{g}-{pod}", server_id, *devices))
        groups.append(instances)
    return template2(*groups)


def converted(document):
    """Template 2 to template 1 in as few words as the rule itself has."""
    servers: dict[str, list] = {}
    rank = 0
    for place, group in enumerate(document["group_list"]):
        if int(group["device_count"]) == 0:
            continue
        pods = group["instance_list"]
        if place == 0:
            pods = sorted(pods, key=lambda pod: int(pod["pod_name"].split("-")[-1]))
        for pod in pods:
            servers.setdefault(pod["server_id"], [])
            for one in pod["devices"]:
                made = {"device_id": str(one["device_id"]), "device_ip": one["device_ip"], "rank_id": str(rank)}
                servers[pod["server_id"]].append(made)
                rank += 1
    listed = [{"server_id": server_id, "device": devices} for server_id, devices in servers.items()]
    return {"status": "completed", "version": "1.0", "server_count": str(len(listed)), "server_list": listed}


@given(tables())
@settings(deadline=None)
def test_a_table_is_converted_by_the_rule_and_read_back(document):
    table = table_of(document)
    text = ranktable.to_template1(table)
    assert json.loads(text) == converted(document)
    again = parse(text.encode(), NAME)
    assert again is not None and again.template == 1
    assert again.servers == table.servers
    assert ranktable.to_template1(again) == text


@given(tables(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_first_groups_instances_in_the_file_does_not_matter(document, random):
    shuffled = copy.deepcopy(document)
    for group in shuffled["group_list"][:1]:
        random.shuffle(group["instance_list"])
    assert table_of(shuffled) == table_of(document)


@given(tables())
@settings(deadline=None)
def test_every_instance_with_devices_finds_its_server(document):
    table = table_of(document)
    for group in document["group_list"]:
        for pod in group["instance_list"]:
            if pod["devices"]:
                mine = table.servers[server_of(table, pod_name=pod["pod_name"], host_ip=None)]
                assert mine.server_id == pod["server_id"]
                assert {str(one["device_id"]) for one in pod["devices"]} <= {one.device_id for one in mine.devices}


_SCALAR = st.none() | st.booleans() | st.integers(-2, 40) | st.floats() | st.text(max_size=5) | st.just("10.0.0.1")
_JSON = st.recursive(
    _SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def check_any(data):
    """Whatever the bytes are: nothing, a table that is sound, or an error whose place is in the document."""
    try:
        table = parse(data, NAME)
    except RankTableError as error:
        check_place(data, error)
        return
    if table is None:
        return
    devices = [(server.server_id, one) for server in table.servers for one in server.devices]
    assert sorted(one.rank for _, one in devices) == list(range(table.size))
    assert len({(server_id, one.device_id) for server_id, one in devices}) == table.size
    addresses = [one.device_ip for _, one in devices if one.device_ip]
    assert len(set(addresses)) == len(addresses)
    assert len({server.server_id for server in table.servers}) == len(table.servers)
    again = parse(ranktable.to_template1(table).encode(), NAME)
    assert again is not None and again.servers == table.servers


def check_place(data, error):
    head = f"{NAME}: {error.place}: " if error.place else f"{NAME}: "
    assert str(error) == head + error.what and "\n" not in str(error)
    line = re.fullmatch(r"line (\d+) column (\d+)", error.place)
    if line:
        lines = data.decode(errors="replace").split("\n")
        assert 1 <= int(line[2]) <= len(lines[int(line[1]) - 1]) + 1
    elif error.what != "is nested too deeply: this is not a rank table":
        document = json.loads(data)
        at(document, error.place)
        for other in re.findall(r"also at (\S+)$", error.what):
            at(document, other)


@given(st.sampled_from([two_nodes(), two_servers()]) | tables(), st.data())
@settings(deadline=None, max_examples=400)
def test_a_changed_table_is_sound_or_an_error_with_its_place(document, data):
    for _ in range(data.draw(st.integers(1, 3))):
        where = list(places(document))
        place = data.draw(st.sampled_from(where))
        what = data.draw(st.sampled_from(["delete", "replace", "copy", "again"]))
        if what == "delete":
            document = put(document, place, DELETED)
        elif what == "replace":
            document = put(document, place, data.draw(_JSON))
        elif what == "copy":
            document = put(document, place, copy.deepcopy(at(document, data.draw(st.sampled_from(where)))))
        elif isinstance(at(document, place), list):
            document = put(document, place, at(document, place) * 2)
        if not document:
            break
    check_any(text_of(document))


@given(st.sampled_from([two_nodes(), two_servers(), WITH_EVERYTHING]), st.data())
@settings(deadline=None, max_examples=400)
def test_changed_bytes_are_sound_or_an_error_with_its_place(document, data):
    raw = bytearray(json.dumps(document, indent=data.draw(st.sampled_from([None, 1]))).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(raw)))
        stop = min(len(raw), start + data.draw(st.integers(0, 8)))
        raw[start:stop] = data.draw(st.binary(max_size=4) | st.sampled_from([b"{", b"}", b'"', b",", b"NaN", b"\\u"]))
    check_any(bytes(raw))


@given(st.binary(max_size=60) | _JSON.map(lambda value: json.dumps(value).encode()))
@example(b'{"status": "completed", "group_list": []}')
@settings(deadline=None, max_examples=300)
def test_any_bytes_at_all_are_nothing_or_an_error_with_its_place(data):
    check_any(data)


@given(st.sampled_from([two_nodes(), two_servers()]), st.data())
@settings(deadline=None, max_examples=150)
def test_a_key_that_stands_twice_is_found_wherever_it_is(document, data):
    wanted = data.draw(st.sampled_from([place for place in places(document) if isinstance(steps_of(place)[-1], str)]))
    error = error_of(doubled(document, wanted).encode())
    assert (error.place, error.what) == (wanted, "occurs twice in the same object: remove one of the two")


def doubled(document, wanted, place=""):
    """JSON text in which the key at `wanted` occurs twice."""
    if isinstance(document, list):
        return "[" + ",".join(doubled(value, wanted, f"{place}[{i}]") for i, value in enumerate(document)) + "]"
    if not isinstance(document, dict):
        return json.dumps(document)
    members = []
    for key, value in document.items():
        inner = f"{place}.{key}".removeprefix(".")
        members += [f"{json.dumps(key)}: {doubled(value, wanted, inner)}"] * (2 if inner == wanted else 1)
    return "{" + ",".join(members) + "}"
