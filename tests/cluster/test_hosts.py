"""The hostfile: every HF case, and what they leave to choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from ms_recipe.cluster.hosts import Hostfile, expand, parse_hostfile, parse_text
from ms_recipe.cluster.job import make_nodes
from ms_recipe.errors import RecipeError

CASES = Path(__file__).parent.parent / "data" / "cases"
TWO = [("192.168.1.100", 4), ("192.168.1.101", 4)]


def case(name: str, slots: int | None = None) -> Hostfile:
    return parse_hostfile(CASES / name / "hostfile", slots)


def pairs(file: Hostfile) -> list[tuple[str, int]]:
    return [(h.name, h.slots) for h in file.hosts]


def refused(text: str, slots: int | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_text(text, "hosts", slots)
    return str(caught.value)


@pytest.mark.parametrize("name", ["HF-01", "HF-02", "HF-08"])
def test_blank_lines_comments_and_no_final_newline(name: str) -> None:
    assert pairs(case(name)) == TWO


def test_hf_04_a_bad_line_is_named() -> None:
    with pytest.raises(RecipeError) as caught:
        case("HF-04")
    text = str(caught.value)
    assert "HF-04/hostfile:2" in text
    assert "line 2" in text
    assert "192.168.1.101 lots=8" in text
    assert "<host> slots=<N>" in text


def test_hf_05_a_host_given_twice_names_both_lines() -> None:
    with pytest.raises(RecipeError, match=r"192\.168\.1\.100 is on lines 1 and 3"):
        case("HF-05")


def test_hf_10_the_user_is_for_ssh_only() -> None:
    file = case("HF-10")
    assert [(h.user, h.name) for h in file.hosts] == [("trainer", "192.168.1.100"), ("root", "192.168.1.101")]
    nodes = make_nodes(file.hosts, master_port=6000)
    assert [n.env["MASTER_ADDR"] for n in nodes] == ["192.168.1.100"] * 2
    assert [n.env["NODE_RANK"] for n in nodes] == ["0", "1"]


def test_hf_12_the_number_after_a_colon_is_the_ssh_port() -> None:
    file = case("HF-12")
    assert [(h.name, h.port, h.slots) for h in file.hosts] == [("192.168.1.100", 2222, 4), ("192.168.1.101", 2222, 4)]
    assert make_nodes(file.hosts)[1].env["MASTER_ADDR"] == "192.168.1.100"


def test_hf_13_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="/nonexistent/hostfile: hostfile not found"):
        parse_hostfile("/nonexistent/hostfile", 8)
    with pytest.raises(RecipeError, match="is a folder"):
        parse_hostfile(tmp_path, 8)
    (tmp_path / "empty").write_text("# nothing\n\n")
    with pytest.raises(RecipeError, match="has no host"):
        parse_hostfile(tmp_path / "empty", 8)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read"):
        parse_hostfile(tmp_path / "binary", 8)


def test_hf_16_slots_come_from_the_recipe_and_never_from_nowhere() -> None:
    assert pairs(case("HF-16", 8)) == [("192.168.1.100", 8), ("192.168.1.101", 8)]
    with pytest.raises(RecipeError, match=r"line 1.*npus_per_node"):
        case("HF-16")


def test_hf_18_blanks_and_tabs() -> None:
    assert pairs(case("HF-18")) == [*TWO, ("192.168.1.102", 4)]


def test_hf_19_names_are_kept_whole() -> None:
    assert [h.name for h in case("HF-19").hosts] == ["npu1-10", "npu1-11", "npu_2.lab.example", "10node"]


def test_all_mistakes_are_reported_at_once() -> None:
    text = refused("a slots=0\nb slots=x\nc slots=\nd:99999 slots=1\n-oProxyCommand=x slots=1\ne slots=1 slots=1\n"
                   "300.1.1.1 slots=1\nfe80::1 slots=1\nn[3-1] slots=1\n"
                   "n[1 slots=1\nf slots=2 max_slots=1\n@h slots=1\n")
    for number in range(1, 13):
        assert f"hosts:{number}:" in text
    assert "[fe80::1]" in text


def test_unequal_slots_are_an_error() -> None:
    assert "c 4 (line 3), b 8 (line 1)" in refused("b slots=8\na slots=8\nc slots=4\n")


@pytest.mark.parametrize(("line", "user", "name", "port"), [
    ("[fe80::1] slots=2", None, "fe80::1", None),
    ("me@[2001:db8::5]:2222 slots=2", "me", "2001:db8::5", 2222),
    ("node port=2200 slots=2", None, "node", 2200),
    ("node:2200 port=2200 slots=2 max_slots=4", None, "node", 2200),
    ("spare slots=2", None, "spare", None),
    ("DOM\\me@node slots=2", "DOM\\me", "node", None),
])
def test_forms_of_a_host(line: str, user: str | None, name: str, port: int | None) -> None:
    (host,) = parse_text(line, "hosts").hosts
    assert (host.user, host.name, host.port, host.slots) == (user, name, port, 2)


def test_bracket_ranges_keep_zeros_and_order() -> None:
    assert list(expand("npu[08-11]")) == ["npu08", "npu09", "npu10", "npu11"]
    assert list(expand("r[2,1]n[1-2]-ib")) == ["r2n1-ib", "r2n2-ib", "r1n1-ib", "r1n2-ib"]
    file = parse_text("z slots=8\nme@npu[01-16]:22 slots=8\na slots=8\n", "hosts")
    assert len(file.hosts) == 18
    assert (file.hosts[0].name, file.hosts[16].name, file.hosts[17].name) == ("z", "npu16", "a")
    assert "npu02 is on lines 1 and 2" in refused("npu[01-03]\nnpu02\n", 8)


def test_spares_are_apart() -> None:
    file = parse_text("a slots=8\nspare b slots = 8\nspare c[1-2] slots=8 # later\n", "hosts")
    assert [h.name for h in file.hosts] == ["a"]
    assert [h.name for h in file.spares] == ["b", "c1", "c2"]
    assert "a is on lines 1 and 2" in refused("a slots=8\nspare a slots=8\n")


def test_same_name_with_two_ports_is_two_hosts() -> None:
    assert len(parse_text("h:2201 slots=1\nh:2202 slots=1\n", "hosts").hosts) == 2


def test_select() -> None:
    file = parse_text("n[1-6] slots=8\nspare n9 slots=8\n", "hosts")
    assert [h.name for h in file.select(include=["n[2-4],n6"], exclude=["n3"]).hosts] == ["n2", "n4", "n6"]
    assert [h.name for h in file.select(first=2).hosts] == ["n1", "n2"]
    with pytest.raises(RecipeError, match="n7: no such host"):
        file.select(include=["n7"])
    with pytest.raises(RecipeError, match="--first 7"):
        file.select(first=7)
    with pytest.raises(RecipeError, match="no host is left"):
        file.select(exclude=["n[1-6]"])


def test_net_03_loopback_with_several_nodes() -> None:
    hosts = case("NET-03").hosts
    assert {n.env["MASTER_ADDR"] for n in make_nodes(hosts)} == {"192.168.1.100"}
    for address in ("localhost", "127.0.0.1", "::1"):
        with pytest.raises(RecipeError, match="MASTER_ADDR"):
            make_nodes(hosts, master_addr=address)
    assert make_nodes(hosts[:1], master_addr="localhost")[0].env["MASTER_ADDR"] == "localhost"


def test_net_04_ranks_in_file_order() -> None:
    nodes = make_nodes(case("NET-04").hosts, master_port=6000)
    assert [n.env["NODE_RANK"] for n in nodes] == ["0", "1", "2"]
    assert [n.rank for n in nodes] == [0, 1, 2]
    for key, value in {"NNODES": "3", "MASTER_ADDR": "192.168.1.100", "MASTER_PORT": "6000", "NPUS_PER_NODE": "4",
                       "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}.items():
        assert {n.env[key] for n in nodes} == {value}


def test_visible_devices_equal_slots() -> None:
    hosts = case("NET-04").hosts
    assert "ASCEND_RT_VISIBLE_DEVICES" not in make_nodes(hosts, env={"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"})[0].env
    with pytest.raises(RecipeError, match="does not name 4 devices"):
        make_nodes(hosts, env={"ASCEND_RT_VISIBLE_DEVICES": "0,1"})
