"""From a dump as Wikipedia gives it to what training reads: fetch corpus, killed and gone on with; data_convert; read back."""

from __future__ import annotations

import bz2
import json
import signal
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from conftest import clean_env, ms_recipe

from fake_hub import serve
from ms_recipe.formats import indexed
from tiny_work import TINY, Tiny

pytestmark = pytest.mark.torch
pytest.importorskip("megatron.core")
pytest.importorskip("mwxml")
parquet = pytest.importorskip("pyarrow.parquet")

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://www.mediawiki.org/xml/export-0.11/ http://www.mediawiki.org/xml/export-0.11.xsd" version="0.11" \
xml:lang="zh">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <dbname>zhwiki</dbname>
    <base>https://zh.wikipedia.org/wiki/Main_Page</base>
    <generator>MediaWiki 1.44.0-wmf.8</generator>
    <case>first-letter</case>
    <namespaces>
      <namespace key="-1" case="first-letter">Special</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Talk</namespace>
      <namespace key="6" case="first-letter">File</namespace>
      <namespace key="10" case="first-letter">Template</namespace>
      <namespace key="14" case="first-letter">Category</namespace>
    </namespaces>
  </siteinfo>
"""
PAGE = """  <page>
    <title>{title}</title>
    <ns>{ns}</ns>
    <id>{id}</id>
{redirect}    <revision>
      <id>{rev}</id>
      <parentid>{parent}</parentid>
      <timestamp>2025-03-0{day}T12:30:45Z</timestamp>
      <contributor>
        <username>Editor &amp; Co</username>
        <id>7</id>
      </contributor>
      <comment>/* History */ &quot;fix&quot;</comment>
      <origin>{rev}</origin>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text bytes="{bytes}" sha1="phoiac9h4m842xq45sp7s6u21eteeq1" xml:space="preserve">{text}</text>
      <sha1>phoiac9h4m842xq45sp7s6u21eteeq1</sha1>
    </revision>
  </page>
"""
HARBOUR = """{{Short description|A harbour}}
{{Infobox settlement
| name     = Harbour {{lang|zh|港口}}
| image    = [[File:Harbour.jpg|thumb|A [[boat]] at dawn]]
| area_km2 = {{convert|12.5|km2|sqmi|abbr=on}}
}}
'''Harbour''' ({{zh|s=港口|t=港口}}) is a [[Port|seaport]] on the [[Yellow Sea]].<ref name="a">{{cite web|url=https://e.org/|title=Gone}}</ref><ref name="a" />
It had 1,204 inhabitants &ndash; most of them ''painters''.<!-- hidden -->

== History ==
[[File:Old map.png|thumb|right|An old map]]
The [[engine]] was built in 1898.{{citation needed|date=May 2024}}
* first ladder
* second ladder
{| class="wikitable sortable"
|+ Gone caption
! Year !! Boats
|-
| 1898 || 12
|-
| 1899 || {{nts|14}}
|}
<gallery>
File:A.jpg|Gone picture
</gallery>
See [https://e.org the map] and H<sub>2</sub>O.

== References ==
{{Reflist|30em}}
[[Category:Harbours]]
[[zh:港口]]
"""
ASCEND = """{{NoteTA|G1=IT}}
'''昇腾'''（英语：''Ascend''）是[[华为|华为公司]]研发的[[人工智能]]处理器系列。<ref>{{cite news|title=不见}}</ref>

== 历史 ==
2018年10月10日，华为发布昇腾910与昇腾310。{{fact|time=2024}}
{| class="wikitable"
! 型号 !! 年份
|-
| 910 || 2019
|}
[[Category:处理器]]
"""
FILLER = """{{{{Infobox|name={n}|x={{{{nested|[[a|b]]}}}}}}}}
'''Engine {n}''' was the [[engine|{n}th engine]] of the harbour.<ref>{{{{cite|{n}}}}}</ref> 第{n}号引擎由工人建造。
{{| class="wikitable"
| gone || {n}
|}}
It was painted by the weaver in the [[year {n}|year]] {n}.
"""


def page(number: int, title: str, text: str, ns: int = 0, redirect: str = "") -> str:
    mark = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return PAGE.format(title=escape(title), ns=ns, id=number, redirect=mark, rev=number * 10, parent=number * 10 - 1,
                       day=number % 9 + 1, bytes=len(text.encode()), text=escape(text))  # fmt: skip


def dump(path: Path, fillers: int) -> Path:
    pages = [
        page(10, "Harbour", HARBOUR),
        page(11, "Port city", "#REDIRECT [[Harbour]]\n\n{{Redirect category shell|1=\n{{R from move}}\n}}", redirect="Harbour"),
        page(12, "Talk:Harbour", "A talk of [[User:X]]. " * 20, ns=1),
        page(13, "Template:Nts", "{{{1}}}<noinclude>" + "text " * 40 + "</noinclude>", ns=10),
        page(14, "昇腾", ASCEND),
        page(15, "Stub", "'''Stub'''."),
        *[page(100 + n, f"Engine {n}", FILLER.format(n=n)) for n in range(fillers)],
    ]
    # multistream: as Wikipedia packs it, several bzip2 streams one behind the other
    streams = [HEAD, *("".join(pages[i : i + 100]) for i in range(0, len(pages), 100)), "</mediawiki>\n"]
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in streams))
    return path


def rows(folder: Path) -> list[dict]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


def documents(prefix: Path) -> list[list[int]]:
    """The token ids of each document, from the files alone."""
    with (prefix.parent / f"{prefix.name}.idx").open("rb") as file:
        head = file.read(34)
        code, sequences, boundaries = struct.unpack("<BQQ", head[17:])
        sizes = struct.unpack(f"<{sequences}i", file.read(4 * sequences))
        file.read(8 * sequences)
        ends = struct.unpack(f"<{boundaries}q", file.read(8 * boundaries))
    letter = {4: "i", 8: "H"}[code]
    raw = (prefix.parent / f"{prefix.name}.bin").read_bytes()
    ids = struct.unpack(f"<{sum(sizes)}{letter}", raw)
    starts = [sum(sizes[:end]) for end in ends]
    return [list(ids[a:b]) for a, b in pairwise(starts)]


def test_a_dump_becomes_what_training_reads(tmp_path: Path) -> None:
    """Text, parquet, .bin/.idx: a document an article, and the text comes back from the tokens, Chinese included."""
    from transformers import AutoTokenizer

    (tmp_path / "hub").mkdir()
    name = "zhwiki-20250301-pages-articles-multistream.xml.bz2"
    dump(tmp_path / "hub" / name, 5)
    with serve(tmp_path / "hub", cut=False) as hub:
        done = ms_recipe("fetch", "corpus", f"{hub.url}/files/{name}", "-o", "wiki", "--per-file", "3", "--min-chars", "40",
                         "--json", cwd=tmp_path)  # fmt: skip
    assert done.code == 0, done.err
    made = json.loads(done.out)
    assert made["articles"] == 7 and [Path(f).name for f in made["files"]] == [f"part-0000{n}.parquet" for n in range(3)]
    found = {row["title"]: row for row in rows(tmp_path / "wiki")}
    assert list(found) == ["Harbour", "昇腾", *(f"Engine {n}" for n in range(5))]
    harbour, ascend = found["Harbour"]["text"], found["昇腾"]["text"]
    for kept in ("Harbour", "seaport on the Yellow Sea.", "1,204 inhabitants – most of them painters.", "The engine was built in 1898.",
                 "first ladder", "History", "See the map and"):  # fmt: skip
        assert kept in harbour, harbour
    for gone in ("{{", "}}", "[[", "{|", "|}", "'''", "<ref", "<!--", "hidden", "Gone", "wikitable", "thumb", "Category:", "Reflist"):
        assert gone not in harbour, harbour
    assert "是华为公司研发的人工智能处理器系列。" in ascend and "2018年10月10日，华为发布昇腾910与昇腾310。" in ascend
    assert "不见" not in ascend and "型号" not in ascend
    # The folder as it is, with the dump and the state in it, is the corpus of data_convert.
    tiny = Tiny(tmp_path, ("--backend", "cpu", "--upstream", "stub"))
    result = tiny.run("data_convert", "paths.raw_data=./wiki", "paths.data=./data/wiki_text_document")
    data = indexed.inspect(str(tmp_path / "data/wiki_text_document"))
    assert data.complete and data.documents == 7 == result["facts"]["data_convert"]["text"]["documents"]
    tokenizer = AutoTokenizer.from_pretrained(TINY / "tiny-tied")
    ids = documents(tmp_path / "data/wiki_text_document")
    assert all(one[-1] == tokenizer.eos_token_id for one in ids)
    texts = [tokenizer.decode(one[:-1]) for one in ids]
    assert texts == [row["text"] for row in found.values()]


def test_a_killed_extraction_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    source = dump(tmp_path / "d.xml.bz2", 1500)
    args = ("fetch", "corpus", str(source), "--per-file", "100", "--min-chars", "40")
    whole = ms_recipe(*args, "-o", "whole", "--json", cwd=tmp_path)
    assert whole.code == 0 and json.loads(whole.out)["articles"] == 1502, whole.err
    first = subprocess.Popen([sys.executable, "-m", "ms_recipe", *args, "-o", "cut"], cwd=tmp_path, env=clean_env(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    while first.poll() is None and not (tmp_path / "cut" / "part-00003.parquet").exists():
        time.sleep(0.01)
    first.kill()
    assert first.wait() == -signal.SIGKILL, "it ended before it could be killed"
    state = json.loads((tmp_path / "cut" / ".corpus.json").read_text())
    assert not state["done"] and 3 <= len(state["files"]) < 16
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cut").glob("part-*") if p.name in str(state["files"])}
    again = ms_recipe(*args, "-o", "cut", cwd=tmp_path)
    assert again.code == 0, again.err
    assert {name: (tmp_path / "cut" / name).stat().st_mtime_ns for name in kept} == kept  # what was whole stayed as it was
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("whole", "cut"))
    assert one == two and len(one) == 17
