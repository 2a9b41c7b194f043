"""The tool `search`: its ranking worked out by hand, what it looks in, and what is refused."""

import os
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from environment_files import call, observed, rows_in, started, written

from unslothrl import environments
from unslothrl.cluster import on_node
from unslothrl.config.options import Config
from unslothrl.environments import corpus
from unslothrl.environments.corpus import Passage, parts, passages
from unslothrl.environments.host import Host, Setup
from unslothrl.environments.tools import search
from unslothrl.errors import UserError

CATS, DOGS, FISH = "The cat sat on the mat", "A dog and a cat, a cat", "Fish swim"
ROWS = [{"title": "Cats", "text": CATS}, {"id": 7, "text": DOGS}, {"text": FISH, "url": "x"}]


def setup_of(path: str, **limits) -> Setup:
    return environments.setup_of("single_turn", (f"search:{path}",), **limits)


def by_hand(tf: int, df: int, words: int, passages: int = 3, mean: float = 16 / 3) -> float:
    """One word's share of a score, as Kamphuis et al. (2020) write Lucene's exact form."""
    idf = log(1 + (passages - df + 0.5) / (df + 0.5))
    return idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * words / mean))


def test_scores_are_those_worked_out_by_hand(tmp_path):
    """The words: "cats the cat sat on the mat", "a dog and a cat a cat", "fish swim"."""
    index = search.Index(rows_in(tmp_path, ROWS))
    scores = index.bm25.get_scores(["cat", "mat", "the"])
    cats = by_hand(1, 2, 7) + by_hand(1, 1, 7) + by_hand(2, 1, 7)
    assert scores.tolist() == pytest.approx([cats, by_hand(2, 2, 7), 0])
    for asked, most, names in (
        ("cat", 3, ["7", "Cats"]),
        ("the CAT, the mat?", 3, ["Cats", "7"]),
        ("swim cat", 1, ["rows.jsonl 3"]),
    ):
        assert [each.name for each in index.best(asked, most)] == names


@pytest.mark.real
def test_an_episode_reads_what_it_has_searched_for(tmp_path):
    said = observed(
        setup_of(rows_in(tmp_path, ROWS)),
        call("search", query="cat"),
        call("search", query="fish", k=1),
        call("search", query="zebra ... ?"),
        call("search", query=" "),
        call("search", query=["cat"]),
        call("search", query="cat", k=11),
        call("search", query="cat", k="2"),
        call("search", query="x" * 1001),
        call("search", k=2),
    )
    assert said == [
        (f"[1] 7\n{DOGS}\n\n[2] Cats\n{CATS}", 0),
        (f"[1] rows.jsonl 3\n{FISH}", 0),
        ("nothing found: no passage has any of these words", 0),
        ("error: search: the query must be a text of a few words", 1),
        ('error: search: query must be of type string, got ["cat"]', 1),
        ("error: search: k must be a whole number from 1 to 10", 1),
        ('error: search: k must be of type integer, got "2"', 1),
        ("error: search: the query is longer than 1,000 characters", 1),
        ("error: search: missing a required argument: 'query'", 1),
    ]


@pytest.mark.real
def test_the_index_is_built_once(tmp_path):
    """The file may be gone when an episode begins."""
    path = rows_in(tmp_path, ROWS)
    host = started(setup_of(path))
    os.remove(path)
    assert observed(host.setup, call("search", query="fish"))[0][1] == 0


def test_a_long_text_is_cut_where_it_has_an_end():
    sentence = "Nine words are in this sentence, and one more. "
    found = list(parts(Passage("T", (sentence * 20).strip() + "\n\n" + sentence * 10)))
    assert [part.name for part in found] == ["T, part 1", "T, part 2"]
    assert found[0].text == (sentence * 20).strip() and len(found[1].text) < corpus.MOST_PASSAGE
    for text in ("x" * 2500, sentence * 500, "y " * 4000):
        found = list(parts(Passage("T", text)))
        assert max(len(part.text) for part in found) <= corpus.MOST_PASSAGE
        assert "".join("".join(part.text for part in found).split()) == "".join(text.split())


def test_a_folder_is_read_in_order_and_below(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    written(tmp_path, CATS, "b/cats.md")
    written(tmp_path, "\ufeff" + DOGS, "a.txt")
    written(tmp_path, "not seen", ".hidden/x.txt")
    written(tmp_path, "x = 1", "code.py")
    assert passages(str(tmp_path))[0] == [("a.txt", DOGS, ""), ("b/cats.md", CATS, "")]
    assert passages(str(tmp_path / "a.txt"))[0] == [("a.txt", DOGS, "")]


def test_rows_without_text_are_left_out_and_counted(tmp_path):
    rows = [*ROWS, {"text": ""}, {"text": None}, {"other": "x"}, {"text": "..."}, {"text": 3}]
    (note,) = environments.check_tools((f"search:{rows_in(tmp_path, rows)}",))
    assert note.endswith("5 without text are left out, 3 passages are searched")
    assert environments.check_tools((f"search:{rows_in(tmp_path, ROWS)}",)) == []


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("日本の首都は東京です", "東京"),
        ("Größe und Café", "GRÖSSE café"),
        ("E\u0301cole normale", "école"),
        ("École normale", "e\u0301cole"),
        ("ＡＢＣ１２３", "abc123"),
    ],
)
def test_a_word_is_found_however_its_letters_are_encoded(written, asked, tmp_path):
    index = search.Index(rows_in(tmp_path, [{"id": "a", "text": written}]))
    assert [each.name for each in index.best(asked, 3)] == ["a"]


def test_a_row_is_called_by_its_title_or_else_by_its_id(tmp_path):
    rows = [{"id": "1", "title": "Cats", "text": CATS}, {"id": "2", "title": "", "text": DOGS}]
    assert passages(rows_in(tmp_path, rows))[0] == [("Cats", CATS, "Cats"), ("2", DOGS, "")]


def test_what_cannot_be_searched_is_refused_in_a_line(tmp_path):
    written(tmp_path, "", "code.py")
    written(tmp_path, "", "empty.txt")
    written(tmp_path, '{"text": "a"}\n{"text": \n', "broken.jsonl")
    rows_in(tmp_path, [{"question": "a", "answer\x1b": 1}], "columns.jsonl")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    for name in ("none", "leaves"):
        (tmp_path / name).mkdir()
    (tmp_path / "none" / "x.png").write_bytes(b"\x89PNG")
    (tmp_path / "leaves" / "passwd.txt").symlink_to("/etc/passwd")
    for name, why in {
        "a\x1b[2J\0b": "no such file or folder",
        "code.py": "unknown kind of file",
        "empty.txt": "there is no text in it",
        "latin.txt": "byte 3 is not UTF-8",
        "broken.jsonl": "row 2 is no JSON object",
        "columns.jsonl": "rows have it in a column text",
        "none": "no file with passages",
        "leaves": "passwd.txt: a link that leads out of the folder",
    }.items():
        with pytest.raises(UserError, match=why) as error:
            environments.check_tools((f"search:{tmp_path / name}",))
        assert str(error.value).isprintable()
    with pytest.raises(UserError, match="no such file"):
        environments.check_tools(("search",))


@pytest.mark.real
def test_a_second_tool_of_the_same_name_is_refused(tmp_path):
    mine = 'def search() -> str:\n    """\n    Mine.\n    """\n'
    tools = (f"search:{rows_in(tmp_path, ROWS)}", written(tmp_path, mine))
    with pytest.raises(UserError, match="two tools are named search: rename one"):
        Host(Setup(tools=tools)).start()


def test_a_node_is_sent_what_is_searched(tmp_path):
    """A file without those beside it; of a folder the files that are read, below it too."""
    (tmp_path / "docs" / "more").mkdir(parents=True)
    written(tmp_path, CATS, "docs/more/cats.md")
    written(tmp_path, DOGS, "docs/dogs.txt")
    written(tmp_path, "x = 1", "docs/code.py")
    file = rows_in(tmp_path / "docs", ROWS)
    for path, names in (
        (file, {"rows.jsonl"}),
        (str(tmp_path / "docs"), {"dogs.txt", "more/cats.md", "rows.jsonl"}),
    ):
        config = replace(Config(), tools=("python", f"search:{path}"))
        (sent,) = on_node.paths_of(config)
        content = on_node.content(sent)
        assert content.keys() == names and on_node.digest(sent)
        target = tmp_path / f"node of {Path(path).name}"
        moved = on_node.write({sent: content}, target)
        tool, here = on_node.renamed(config, lambda path, moved=moved: moved.get(path, path)).tools
        assert tool == "python" and str(target) in here
        (ours, _), (theirs, _) = passages(path), passages(environments.corpus_of(here))
        assert sorted(theirs) == sorted(ours)
        assert on_node.digest(here) == on_node.digest(sent)
    assert on_node.digest(f"search:{tmp_path}/nowhere") == ""
