"""Data files that are not what their names say, or that Python cannot hold."""

import json
import os

import pyarrow
import pyarrow.parquet
import pytest

from unslothrl.commands import cli
from unslothrl.data import columns, files, formats, sources
from unslothrl.data.columns import UnusableRow
from unslothrl.errors import UserError
from unslothrl.text import is_too_deep

ENDS = bytes([0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])  # of two texts of two bytes
NOT_UTF8 = pyarrow.StringArray.from_buffers(
    2, pyarrow.py_buffer(ENDS), pyarrow.py_buffer(b"ab\xff\xfe")
)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


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
        ("a b.csv", "p,a\n1,2\n".encode("utf-16-le"), "UTF-16 -t UTF-8 'a b.csv' > NEW"),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-16-be"), "UTF-16"),
        ("a.json", '[{"a": 1}]'.encode("utf-16-le"), "UTF-16"),
        ("a.csv", b"PK\x03\x04\x14\x00\x06\x00", "the ending of the kind that it is"),
        ("a.jsonl", b"\x1f\x8b\x08\x00", "the ending of the kind that it is"),
        ("a.jsonl.zst", b"", "unpack it"),
        ("a.csv", b"c," * 300_000 + b"c\n", "its header has 'c' twice"),
        ("a.csv", b"x" * 5000 + b"," + b"x" * 5000 + b"\n", "xxx... twice"),
        ("a.jsonl", b'{"x": %s}\n' % nested(101).encode(), "row 1 has over 100 levels"),
        ("a.json", b'[{"x": %s}]\n' % nested(101).encode(), "row 1 has over 100 levels"),
        ("a.json", b'{"x": [1], "y": %s}' % nested(101).encode(), "it has over 100 levels"),
    ],
)  # fmt: skip
def test_what_a_file_is_instead_is_said(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    line = said_of(tmp_path / name)
    assert said in line and len(line) < 400 + len(str(tmp_path))


def test_blank_lines_before_a_header_are_passed_over(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\n\r\nproblem,answer\n1,2\n")
    assert [*files.read(tmp_path / "a.csv")] == [{"problem": "1", "answer": "2"}]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("column", "said"),
    [
        (NOT_UTF8, "is damaged (Column 0: In chunk 0: Invalid: Invalid UTF8 sequence at string"),
    ],
)
def test_tables_with_what_python_cannot_hold(tmp_path, kind, column, said):
    write(tmp_path / f"a.{kind}", pyarrow.table({"problem": column}))
    assert said in said_of(tmp_path / f"a.{kind}")


@pytest.mark.parametrize("end", [b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"], ids=["negative", "far"])
def test_a_text_that_ends_outside_of_its_table_is_never_read(tmp_path, end):
    """Arrow would read whatever lies there."""
    path = tmp_path / "a.arrow"
    write(path, pyarrow.table({"problem": ["ab", "cd"]}))
    assert path.read_bytes().count(ENDS) == 1
    path.write_bytes(path.read_bytes().replace(ENDS, ENDS[:8] + end))
    assert "damaged (" in said_of(path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_whose_name_is_no_text_is_refused(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    write(path, pyarrow.table({"nameofit": ["1"]}))
    path.write_bytes(path.read_bytes().replace(b"nameofit", b"name\xfffit"))
    assert "damaged (" in said_of(path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_table_with_a_column_twice_is_refused(tmp_path, kind):
    one = pyarrow.array(["1"])
    write(tmp_path / f"a.{kind}", pyarrow.Table.from_arrays([one, one], names=["a", "a"]))
    assert "its header has 'a' twice" in said_of(tmp_path / f"a.{kind}")


def write(path, table) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
        return
    with pyarrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def test_the_deepest_row_that_is_read_is_understood():
    """Every level takes more of Python's stack to walk through than to read."""
    text = f'{{"question": "q", "answer": "1", "x": {nested(99)}}}'
    row = json.loads(text)
    assert not is_too_deep(text, row)
    assert formats.read(row).extra == {"x": row["x"]}
    with pytest.raises(UnusableRow, match="column question must be text"):
        formats.read({"question": row["x"], "answer": "1"})
    deeper = nested(101)
    assert columns.parsed(deeper) == deeper and columns.parsed(nested(100)) == json.loads(
        nested(100)
    )
    brackets = json.dumps({"x": "[{" * 1000})
    assert not is_too_deep(brackets, json.loads(brackets))


def test_of_many_columns_a_message_names_the_first():
    row = {f"column{i}": 1 for i in range(10_000)} | {"x" * 10**6: 1}
    with pytest.raises(
        UnusableRow, match=r"it has column0, .*, column29, 9,971 more: set"
    ) as error:
        formats.read(row)
    assert len(str(error.value)) < 1000
    assert len(columns.names_of({"y" * 10**6: 1})) <= 42 and columns.names_of({}) == "none"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_said(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"problem": "1", "answer": "1"}\n')
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(UserError, match="cannot be read"):
        sources.local_splits(tmp_path)


def test_an_eval_set_of_a_hidden_file_has_a_name():
    assert dict(sources.named_sources("./.held.jsonl")) == {"held": "./.held.jsonl"}
    assert dict(sources.named_sources("./.jsonl")) == {"jsonl": "./.jsonl"}


@pytest.mark.real
def test_data_shows_prompts_as_text_alone(tmp_path, capsys):
    row = {"problem": "a\x1b[2J\u202eb\tc\nd", "answer": "1\x1b[31m"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    words = ["data", str(tmp_path / "a.jsonl"), "--model", "embedded", "--system_prompt", ""]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "a?[2J?b\tc\nd" in out
