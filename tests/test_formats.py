"""Files as people have them: ShareGPT, Alpaca, what spreadsheets export, JSON of every shape."""

import gzip
import json

import pyarrow
import pytest
from test_data import as_csv, write

from unslothrl.data import files, formats, sources, tasks
from unslothrl.data.formats import Columns
from unslothrl.errors import UserError
from unslothrl.records import Task

PROBLEM = "What is 3 + 4?"
ASKED = (("user", PROBLEM),)
TURNS = [{"from": "human", "value": PROBLEM}, {"from": "gpt", "value": "It is \\boxed{7}."}]
BRIEF = (("system", "Be brief."), *ASKED)
ADD, ADDED = {"instruction": "Add.", "input": "3 and 4"}, (("user", "Add.\n\n3 and 4"),)
QUESTION, LAST = {"role": "user", "content": PROBLEM}, formats.LAST_TURN
SYSTEM = {"from": "system", "value": "Be brief."}
GIVEN, CHAT = {"instruction": PROBLEM}, "conversations"


@pytest.mark.parametrize(
    ("row", "messages", "prompt", "answer"),
    [
        ({CHAT: json.dumps(TURNS)}, ASKED, CHAT, LAST),
        ({CHAT: [SYSTEM, *TURNS]}, BRIEF, CHAT, LAST),
        ({CHAT: TURNS, "system": "Be brief."}, BRIEF, CHAT, LAST),
        ({CHAT: [QUESTION], "answer": "7"}, ASKED, CHAT, "answer"),
        ({**GIVEN, "input": "", "output": "3 + 4 = 7\n#### 7"}, ASKED, "instruction", "output"),
        ({**ADD, "output": "The answer is: 7."}, ADDED, "instruction + input", "output"),
        ({**GIVEN, "system": "Be brief.", "output": "7"}, BRIEF, "instruction + system", "output"),
        ({" Question ": PROBLEM, "ANSWER": 7}, ASKED, "question", "answer"),
        ({"question": PROBLEM, "answer": 7.0}, ASKED, "question", "answer"),  # pandas
        ({"question": PROBLEM, "answer": "so \\boxed{7}."}, ASKED, "question", "answer"),
        ({"question": PROBLEM, "answer": "\\boxed{3} + 4 #### 7"}, ASKED, "question", "answer"),
    ],
)
def test_rows_of_other_peoples_formats(row, messages, prompt, answer):
    record = formats.read(row)
    assert (record.messages, record.answer) == (messages, "7")
    assert record.columns == Columns(prompt, answer)
    assert {CHAT, "instruction", "output", "answer"} & record.extra.keys() == set()


ROWS = [{"problem": f'What, "{i}";\n then|{i}?', "answer": f"{i},5"} for i in range(20)]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_every_delimiter_is_found(delimiter, start, newline, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes((start + as_csv(ROWS, delimiter, newline)).encode())
    rows = files.read(path)
    assert [rows[i] for i in (0, 19, 7)] == [ROWS[i] for i in (0, 19, 7)] and len(rows) == 20


def test_the_delimiter_is_the_one_that_separates(tmp_path):
    commas = ("problem\nis it 1, 2; or 3?\nwhat\n", '"a\nb",c\n1,2\n')
    for text, delimiter in (("a;b\n1,5;2,5\n", ";"), *((text, ",") for text in commas)):
        (tmp_path / "rows.csv").write_text(text)
        assert files.dialect_of(tmp_path / "rows.csv")["delimiter"] == delimiter


@pytest.mark.parametrize(
    "whole",
    [
        {"version": 1, "data": [{"a": 1}, {"a": 2}]},
        {"a": [1, 2], "b": ["x", "y"]},
        {"a": {"0": 1, "1": 2}, "b": {"0": "x", "1": "y"}},  # pandas
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_that_is_one_object(whole, indent, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(whole, indent=indent))
    rows = files.read(path)
    assert [row["a"] for row in (rows[0], rows[1])] == [1, 2] and len(rows) == 2


def test_an_object_a_line_stays_that(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"a": [1, 2], "b": 3}\n{"a": [3], "b": 4}\n')
    assert [files.read(path)[i]["b"] for i in (0, 1)] == [3, 4]
    path.write_text('{"a": [1, 2], "b": 3}\n')
    assert len(files.read(path)) == 1
    path.write_text(json.dumps({"conversations": TURNS}))
    assert files.read(path)[0] == {"conversations": TURNS}


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv"])
def test_files_that_gzip_has_compressed(kind, tmp_path):
    text = as_csv(ROWS, ",") if kind == ".csv" else "".join(json.dumps(r) + "\n" for r in ROWS)
    path = tmp_path / f"train{kind}.gz"
    path.write_bytes(gzip.compress(text.encode()))
    (rows,) = sources.load_splits(sources.parse(str(path))).values()
    assert rows[19] == ROWS[19] and len(rows) == 20
    assert list(sources.load_splits(sources.parse(str(tmp_path)))) == ["train"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train\.\w+\.gz: it cannot be read"):
        files.read(path)


def test_sets_are_known_by_name_but_a_file_of_that_name_goes_first(tmp_path, here):
    for text, known in (("math500", "MATH-500"), ("human_eval", "HumanEval")):
        found = sources.parse(text)
        assert sources.name_of(text) == known == found.known == found.label
        assert found.name.count("/") == 1 and found.split
    assert sources.name_of("openai/gsm8k") is None is sources.parse("openai/gsm8k").known
    (tmp_path / "mbpp").mkdir()
    assert sources.parse("mbpp").known is None and sources.parse("mbpp").is_local


def test_the_reward_is_the_runs_where_it_grades_them():
    assert sources.reward_of(["MATH-500", "AIME"], "accuracy") is None
    assert sources.reward_of(["MATH-500"], "code") == "boxed"
    assert sources.reward_of(["HumanEval", "mine"], "accuracy") == "code"
    assert sources.reward_of(["MBPP"], "code") is None and sources.reward_of(["mine"], "x") is None
    with pytest.raises(UserError, match="GSM8K and MBPP are graded by different rewards"):
        sources.reward_of(["GSM8K", "MBPP"], "accuracy")


def test_problems_that_are_trained_on_and_evaluated_are_counted():
    def task(problem):
        return Task("x", problem, "", problem, (1,), {})

    train = tasks.FiniteTasks([task("1 + 1?"), task("2 + 2?")], 0)
    evals = {"mine": [task(" 2 +  2? "), task("3 + 3?"), task("1 + 1?")], "other": [task("9?")]}
    (warning,) = tasks.notes_on_repeated(train, evals)
    assert warning.startswith("warning: 2 of 3 problems of eval set mine are also trained on")


ENDS = bytes([0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])  # of two texts of two bytes
NOT_UTF8 = pyarrow.StringArray.from_buffers(
    2, pyarrow.py_buffer(ENDS), pyarrow.py_buffer(b"ab\xff\xfe")
)
NESTED = b"[" * 101 + b"]" * 101


def said_of(path) -> str:
    with pytest.raises(UserError) as error:
        rows = files.read(path)
        for index in range(len(rows)):
            rows[index]
    (line,) = str(error.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "problem;answer\n1;2\n".encode("utf-16"), "iconv -f UTF-16, or WINDOWS-1252"),
        ("a.csv", b"problem;answer\n\xfc;2\n", "iconv -f UTF-16, or WINDOWS-1252"),
        ("a.csv", b"problem;answer\n1;2;3\n1;2\n1;2\n", "quote fields that hold a semicolon"),
        ("a.csv", b"PK\x03\x04\x14\x00\x06\x00", "the ending of what it is"),
        ("a.jsonl", b"\x1f\x8b\x08\x00", "the ending of what it is"),
        ("a.csv", b"c," * 300_000 + b"c\n", "its header has 'c' twice"),
        ("a.jsonl", b'{"x": %s}\n' % NESTED, "row 1 is no JSON object of at"),
        ("a.json", b'[{"x": %s}]\n' % NESTED, "row 1 is no JSON object of at"),
        ("a.json", b'{"a": 1}\n{"a": }\n', "row 2 is no JSON object"),
        ("a.json", b'{"b": [{"a": 1}], "c": [{"a": 2}]}', "several lists of rows (b, c)"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    line = said_of(tmp_path / name)
    assert said in line and len(line) < 400 + len(str(tmp_path))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_with_what_python_cannot_hold(tmp_path, kind):
    path, one = tmp_path / f"a.{kind}", pyarrow.array(["1"])
    write(path, pyarrow.table({"problem": NOT_UTF8}))
    assert "is damaged (" in said_of(path)
    write(path, pyarrow.Table.from_arrays([one, one], names=["a", "a"]))
    assert "its header has 'a' twice" in said_of(path)


@pytest.mark.parametrize("end", [b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"], ids=["negative", "far"])
def test_a_text_that_ends_outside_of_its_table_is_never_read(tmp_path, end):
    """Arrow would read whatever lies there."""
    path = tmp_path / "a.arrow"
    write(path, pyarrow.table({"problem": ["ab", "cd"]}))
    assert path.read_bytes().count(ENDS) == 1
    path.write_bytes(path.read_bytes().replace(ENDS, ENDS[:8] + end))
    assert "damaged (" in said_of(path)
