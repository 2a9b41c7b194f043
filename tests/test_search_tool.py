"""The tool `search`: its ranking worked out by hand, what it looks in, and what is refused."""

import csv
import json
import os
import sys
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from environment_files import Script, asked, play_with, written

from unslothrl import environments
from unslothrl.cluster import on_node
from unslothrl.commands import cli
from unslothrl.config.options import Config
from unslothrl.environments import corpus
from unslothrl.environments.corpus import Corpus, Passage, parts
from unslothrl.environments.host import Host, Setup
from unslothrl.environments.tool_calls import schema
from unslothrl.environments.tools import search
from unslothrl.errors import UserError

CATS, DOGS, FISH = "The cat sat on the mat", "A dog and a cat, a cat", "Fish swim"
ROWS = [
    {"title": "Cats", "text": CATS},
    {"id": 7, "text": DOGS},
    {"text": FISH, "url": "x"},
]


def rows_in(folder: Path, rows: list[dict], name: str = "corpus.jsonl") -> str:
    return written(folder, "".join(json.dumps(row) + "\n" for row in rows), name)


def setup_of(path: str, **limits) -> Setup:
    return environments.setup_of("single_turn", (f"search:{path}",), **limits)


def call(**arguments) -> str:
    said = json.dumps({"name": "search", "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>$"


def observed(setup: Setup, *calls: str) -> list[tuple[str, int]]:
    """What the calls of one episode have given, and how many have failed."""
    played = play_with(setup, Script(*calls, "x$"), most=60_000, turn=2000, of=asked("?"))
    assert not played.lost
    turns = played.completion.transcript.turns[: len(calls)]
    return [(turn.observation, turn.failed_calls) for turn in turns]


def by_hand(tf: int, df: int, words: int, passages: int = 3, mean: float = 16 / 3) -> float:
    """One word's share of a score, as Kamphuis et al. (2020) write Lucene's exact form."""
    idf = log(1 + (passages - df + 0.5) / (df + 0.5))
    return idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * words / mean))


def test_scores_are_those_worked_out_by_hand(tmp_path):
    """The words: "cats the cat sat on the mat", "a dog and a cat a cat", "fish swim"."""
    index = search.Index(Corpus(rows_in(tmp_path, ROWS)))
    scores = index.bm25.get_scores(["cat", "mat", "the"])
    assert scores.tolist() == pytest.approx(
        [
            by_hand(1, 2, 7) + by_hand(1, 1, 7) + by_hand(2, 1, 7),
            by_hand(2, 2, 7),
            0,
        ]
    )
    assert [each.name for each in index.best("cat", 3)] == ["7", "Cats"]
    assert by_hand(2, 2, 7) > by_hand(1, 2, 7)
    assert [each.name for each in index.best("the CAT, the mat?", 3)] == ["Cats", "7"]
    assert [each.name for each in index.best("swim cat", 1)] == ["corpus.jsonl 3"]


def test_equal_passages_are_found_in_their_order(tmp_path):
    rows = [{"id": number, "text": "one and the same"} for number in range(50)]
    index = search.Index(Corpus(rows_in(tmp_path, rows)))
    assert [each.name for each in index.best("same", 5)] == list("01234")


def test_chinese_and_japanese_are_found_by_their_characters(tmp_path):
    rows = [{"id": "a", "text": "日本の首都は東京です"}, {"id": "b", "text": "Größe und Café"}]
    index = search.Index(Corpus(rows_in(tmp_path, rows)))
    assert [each.name for each in index.best("東京", 3)] == ["a"]
    assert [each.name for each in index.best("GRÖSSE café", 3)] == ["b"]


@pytest.mark.real
def test_an_episode_reads_what_it_has_searched_for(tmp_path):
    said = observed(
        setup_of(rows_in(tmp_path, ROWS)),
        call(query="cat"),
        call(query="fish", k=1),
        call(query="zebra ... ?"),
        call(query=" "),
        call(query=["cat"]),
        call(query="cat", k=11),
        call(query="cat", k="2"),
        call(query="x" * 1001),
        call(k=2),
    )
    assert said == [
        (f"[1] 7\n{DOGS}\n\n[2] Cats\n{CATS}", 0),
        (f"[1] corpus.jsonl 3\n{FISH}", 0),
        ("nothing found: no passage has any of these words", 0),
        ("error: search: the query must be a text of a few words", 1),
        ('error: search: query must be of type string, got ["cat"]', 1),
        ("error: search: k must be a whole number from 1 to 10", 1),
        ('error: search: k must be of type integer, got "2"', 1),
        ("error: search: the query is longer than 1,000 characters", 1),
        ("error: search: missing a required argument: 'query'", 1),
    ]


@pytest.mark.real
def test_the_schema_that_the_model_is_shown(tmp_path):
    (function,) = search.tools(rows_in(tmp_path, ROWS))
    shown = schema(function)["function"]
    assert shown["name"] == "search" and shown["parameters"]["required"] == ["query"]
    kinds = {name: each["type"] for name, each in shown["parameters"]["properties"].items()}
    assert kinds == {"query": "string", "k": "integer"}


@pytest.mark.real
def test_the_index_is_built_once_and_episodes_keep_nothing(tmp_path):
    """The file may be gone when an episode begins; what one has changed no other sees."""
    path = rows_in(tmp_path, ROWS)
    spoils = "import unslothrl_environment_search as s\n\ndef spoil() -> str:\n" + (
        '    """\n    Spoils.\n    """\n    s.MOST_RESULTS = 0\n    return "done"\n'
    )
    tools = (f"search:{path}", written(tmp_path, spoils, "spoil.py"))
    host = Host(environments.setup_of("single_turn", tools))
    host.start()
    os.remove(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("environment_files.Host", lambda setup: host)
        patch.setattr(host, "close", lambda: None)
        spoil = call().replace("search", "spoil")
        first = observed(host.setup, spoil, call(query="fish", k=1))
        assert [failed for _, failed in first] == [0, 1]
        assert observed(host.setup, call(query="fish", k=1))[0][1] == 0
    host.close()


def test_a_long_text_is_cut_where_it_has_an_end():
    sentence = "Nine words are in this sentence, and one more. "
    found = list(parts(Passage("T", (sentence * 20).strip() + "\n\n" + sentence * 10)))
    assert [part.name for part in found] == ["T, part 1", "T, part 2"]
    assert found[0].text == (sentence * 20).strip() and len(found[1].text) < corpus.MOST_PASSAGE
    for text in ("x" * 2500, sentence * 500, "y " * 4000):
        found = list(parts(Passage("T", text)))
        assert max(len(part.text) for part in found) <= corpus.MOST_PASSAGE
        assert "".join("".join(part.text for part in found).split()) == "".join(text.split())


def test_a_row_of_ten_megabytes_is_cut_too(tmp_path):
    path = rows_in(tmp_path, [{"text": "ab " * 3_500_000}, {"text": "c" * 10_000_000}])
    lengths = [len(each.text) for each in Corpus(path)]
    assert len(lengths) > 20_000 and max(lengths) <= corpus.MOST_PASSAGE


def test_files_of_every_kind_are_read(tmp_path):
    rows = [{"id": "1", "title": "Cats", "text": CATS}, {"id": "2", "title": "", "text": DOGS}]
    expected = [("Cats", CATS, "Cats"), ("2", DOGS, "")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    rows_in(tmp_path, rows, "rows.jsonl")
    for kind in ("json", "csv", "parquet", "jsonl"):
        assert [tuple(each) for each in Corpus(str(tmp_path / f"rows.{kind}"))] == expected
    written(tmp_path, "\ufeff" + CATS, "text.txt")
    assert list(Corpus(str(tmp_path / "text.txt"))) == [("text.txt", CATS, "")]


def test_a_folder_is_read_in_order_and_below(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    written(tmp_path, CATS, "b/cats.md")
    written(tmp_path, DOGS, "a.txt")
    written(tmp_path, "not seen", ".hidden/x.txt")
    written(tmp_path, "x = 1", "code.py")
    found = Corpus(str(tmp_path))
    assert list(found) == [("a.txt", DOGS, ""), ("b/cats.md", CATS, "")]


def test_rows_without_text_are_left_out_and_counted(tmp_path):
    rows = [*ROWS, {"text": ""}, {"text": None}, {"other": "x"}, {"text": "..."}, {"text": 3}]
    (note,) = environments.check_tools((f"search:{rows_in(tmp_path, rows)}",))
    assert note.endswith("5 without text are left out, 3 passages are searched")
    assert environments.check_tools((f"search:{rows_in(tmp_path, ROWS)}",)) == []


def test_control_characters_do_not_reach_the_policy(tmp_path):
    text = "red \x1b[31m alert\x07\x00\u202e \ud800 end\nof it"
    (function,) = search.tools(rows_in(tmp_path, [{"title": "a\nb\x1b", "text": text}]))
    assert function("alert") == "[1] a b\nred [31m alert  end\nof it"


def test_ordinary_white_space_is_shown_as_such(tmp_path):
    """Of Windows' files, of pages and of Japanese; an accent or an emoji of several characters
    stays whole."""
    text = "nile\r\nriver\rends\u2028at\u00a0sea\u3000海\tx\x0by \U0001f469\u200d\U0001f680"
    (function,) = search.tools(rows_in(tmp_path, [{"title": "a\u00a0b", "text": text}]))
    assert function("nile") == (
        "[1] a b\nnile\nriver\nends\nat sea 海\tx y \U0001f469\u200d\U0001f680"
    )


def test_a_text_of_windows_is_cut_between_its_paragraphs():
    text = "\r\n\r\n".join(["One sentence. And another one. " * 20] * 2)
    assert [part.text.count("\n") for part in parts(Passage("T", text))] == [0, 0]


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("E\u0301cole normale", "école"),
        ("École normale", "e\u0301cole"),
        ("ＡＢＣ１２３", "abc123"),
        ("ﬁnance", "finance"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
    ],
)
def test_a_word_is_found_however_its_letters_are_encoded(written, asked, tmp_path):
    index = search.Index(Corpus(rows_in(tmp_path, [{"id": "a", "text": written}])))
    assert [each.name for each in index.best(asked, 3)] == ["a"]


def refused(folder: Path) -> dict[str, str]:
    """What is given -> a part of the line that says why it is refused."""
    for name in ("empty.jsonl", "empty.txt", "code.py"):
        (folder / name).write_text("")
    (folder / "list.jsonl").write_text("[]\n")
    (folder / "zero.jsonl").write_bytes(b'{"text": "a\0b"}\n')
    (folder / "zero.json").write_bytes(b'[{"text": "a\0b"}]')
    (folder / "binary.txt").write_bytes(b"\x7fELF\x02\x01\x00\x00" * 100)
    (folder / "binary.jsonl").write_bytes(bytes(range(128, 256)) * 8 + b"\n")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    rows_in(folder, [{"question": "a", "answer\x1b": 1}], "columns.jsonl")
    rows_in(folder, [{"text": "..."}], "wordless.jsonl")
    for name in ("none", "leaves", "broken"):
        (folder / name).mkdir()
    (folder / "none" / "x.png").write_bytes(b"\x89PNG")
    (folder / "leaves" / "passwd.txt").symlink_to("/etc/passwd")
    (folder / "broken" / "a.txt").write_text("fine")
    (folder / "broken" / "b.txt").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(folder / "pipe.txt")
    return {
        "nowhere.jsonl": "no such file or folder: check the path",
        "": "name a file or a folder",
        "a\x1b[2J\0b": "no such file or folder",
        "code.py": "unknown kind of file: use .jsonl",
        "empty.jsonl": "it is empty",
        "empty.txt": "there is no text in it: give a file with passages",
        "zero.jsonl": "it is no text in UTF-8",
        "zero.json": "it is no text in UTF-8",
        "list.jsonl": "it is empty",
        "binary.jsonl": "it is no text in UTF-8",
        "latin.txt": "byte 3 is not UTF-8",
        "broken.jsonl": "row 2 is not JSON",
        "columns.jsonl": "no row has a text (its columns: question, answer",
        "wordless.jsonl": "no row has a text",
        "none": "no file with passages in this folder",
        "leaves": "passwd.txt: a link that leads out of the folder",
        "broken": "b.txt: ",
        "pipe.txt": "no such file or folder",
    }


def test_what_cannot_be_searched_is_refused_in_a_line(tmp_path):
    for name, why in refused(tmp_path).items():
        path = str(tmp_path / name) if name else ""
        with pytest.raises(UserError) as error:
            environments.check_tools((f"search:{path}",))
        said = str(error.value)
        assert why in said and said.startswith(("tools search:", "dataset ")), said
        assert said.isprintable() and said.count(str(tmp_path / name)) <= 1, said


def test_more_than_one_search_is_refused(tmp_path):
    tool = f"search:{rows_in(tmp_path, ROWS)}"
    with pytest.raises(UserError, match="given twice: give one folder"):
        environments.check_tools((tool, tool))
    with pytest.raises(UserError, match="no such file"):
        environments.check_tools(("search",))


@pytest.mark.real
def test_a_second_tool_of_the_same_name_is_refused(tmp_path):
    mine = 'def search() -> str:\n    """\n    Mine.\n    """\n'
    tools = (f"search:{rows_in(tmp_path, ROWS)}", written(tmp_path, mine))
    with pytest.raises(UserError, match="two tools are named search: rename one"):
        Host(Setup(tools=tools)).start()


def test_too_many_passages_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MOST_PASSAGES", 2)
    with pytest.raises(UserError, match="more than 2 passages: give a part of it"):
        environments.check_tools((f"search:{rows_in(tmp_path, ROWS)}",))


@pytest.mark.real
def test_another_python_says_what_it_lacks(tmp_path):
    bare = written(tmp_path, f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', "python")
    os.chmod(bare, 0o755)
    with pytest.raises(UserError) as error:
        Host(setup_of(rows_in(tmp_path, ROWS), python=bare)).start()
    said = str(error.value)
    assert "lacks what search needs, numpy, bm25s, transformers" in said and "\n" not in said


def test_a_node_is_sent_what_is_searched(tmp_path):
    """A file without those beside it; of a folder the files that are read, below it too."""
    (tmp_path / "docs" / "more").mkdir(parents=True)
    written(tmp_path, CATS, "docs/more/cats.md")
    written(tmp_path, DOGS, "docs/dogs.txt")
    written(tmp_path, "x = 1", "docs/code.py")
    file = rows_in(tmp_path / "docs", ROWS, "rows.jsonl")
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
        here = on_node.renamed(config, lambda path, moved=moved: moved.get(path, path))
        moved = environments.corpus_of(here.tools[1])
        assert here.tools[0] == "python" and str(target) in moved
        assert sorted(Corpus(moved)) == sorted(Corpus(path))
        assert on_node.digest(here.tools[1]) == on_node.digest(sent)
    assert on_node.digest(f"search:{tmp_path}/nowhere") == ""


@pytest.mark.slow
@pytest.mark.real
def test_a_run_that_searches(tmp_path, monkeypatch, capsys):
    """Two steps on the embedded model, the path given relative to the folder."""
    rows_in(tmp_path, [*ROWS, {"text": ""}])
    monkeypatch.chdir(tmp_path)
    flags = (
        "--learner grpo --tools search:corpus.jsonl --max_steps 2 --batch_size 4 --eval_every 0 "
        "--cluster local --engine transformers --number_of_actors 0 --max_prompt_tokens 900 "
        "--max_episode_tokens 60 --max_new_tokens 30 --run_name searches"
    )
    assert cli.main(flags.split()) == 0
    assert "1 without text are left out, 3 passages are searched" in capsys.readouterr().out
    lines = (tmp_path / "runs/searches/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines if '"episode/turns"' in line]
    assert len(steps) == 2 and not any(step["episode/lost"] for step in steps)
    rollouts = (tmp_path / "runs/searches/rollouts/step_000002.jsonl").read_text().splitlines()
    assert all("Searches for passages" in json.loads(line)["prompt"] for line in rollouts)
