"""Rows to tasks: sources, formats, splits, prompts, and bad input that says what and where."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from few_cases import few
from python_process import python

from unslothrl import embedded
from unslothrl.cluster.build import data_options
from unslothrl.commands import cli
from unslothrl.commands import data as describe
from unslothrl.config.options import Config
from unslothrl.data import files, formats, rendering, sources, tasks
from unslothrl.data.files import LazyRows
from unslothrl.data.formats import Columns, UnusableRow
from unslothrl.data.rendering import Skipped
from unslothrl.data.sources import Source
from unslothrl.errors import UserError
from unslothrl.rewards.builtin import code, countdown, maths
from unslothrl.rewards.reward import THINK_AND_ANSWER
from unslothrl.weights import adapter_use, base_model

ROOT = Path(__file__).parents[1]


@pytest.fixture
def load(tmp_path, tokenizer):
    """-> load(rows, **options): the data of a run over a.jsonl."""

    return lambda rows, **changes: tasks.load(
        options(write(tmp_path / "a.jsonl", rows), **changes), tokenizer
    )


def options(dataset, reward=(), **changes):
    usual = {"holdout": 0.25, "eval_problems": 0, "max_prompt_tokens": 200, "seed": 0}
    config = Config(model="other", dataset=str(dataset), reward=reward)
    return data_options(replace(config, **{**usual, "system_prompt": "", **changes}))


def as_csv(rows, delimiter=",", newline="\n"):
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, rows[0], delimiter=delimiter, lineterminator=newline)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(path, rows):
    """As a file of the kind that its name says; tables in parts of a few rows."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2, ensure_ascii=False), "utf-8")
    elif path.suffix in (".csv", ".tsv"):
        delimiter = "," if path.suffix == ".csv" else "\t"
        path.write_bytes(as_csv(rows, delimiter, "\r\n").encode())
    else:
        table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=6)
            return path
        new = pyarrow.ipc.new_stream if ".stream" in path.name else pyarrow.ipc.new_file
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=6)
    return path


ROWS = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(20)]


def eval_of(data):
    (found,) = data.evals.values()
    return found


def trained_on(data):
    return [one.problem for one in data.train.tasks]


PROBLEM, ANSWER = "What is 3 + 4?", "7"
SAID, PARTS = [{"role": "user", "content": PROBLEM}], [{"type": "text", "text": PROBLEM}]
TESTS = {"inputs": ["1\n"], "outputs": ["2\n"]}
SAME_ROW = {
    "D and MATH-500": {"problem": PROBLEM, "answer": ANSWER, "level": 1},
    "GSM8K": {"question": PROBLEM, "answer": "3 + 4 = <<3+4=7>>7\n#### 7"},
    "C": {"messages": SAID, "gt_answer": ANSWER},
    "C, as text": {"messages": json.dumps(SAID), "gt_answer": ANSWER},
    "R, messages": {"messages": SAID, "extra_info": {"answer": ANSWER}},
    "verl": {"prompt": SAID, "reward_model": {"ground_truth": ANSWER, "style": "rule"}},
    "prompt and completion": {"prompt": PROBLEM, "completion": "3 + 4 = 7, so \\boxed{7}"},
    "conversation": {"messages": [*SAID, {"role": "assistant", "content": "<answer>7</answer>"}]},
    "solution": {"problem": PROBLEM, "solution": "It is $\\boxed{7}$."},
    "several answers": {"question": PROBLEM, "answer": ["7", "seven"]},
    "a number": {"problem": PROBLEM, "answer": 7},
    "parts": {"messages": [{**SAID[0], "content": PARTS}], "ground_truth": ANSWER},
}


@pytest.mark.parametrize("reward", ["accuracy", "boxed"])
def test_every_format_of_a_row_has_the_same_prompt_and_answer(reward, tokenizer):
    asked = options("x", reward=(reward,), system_prompt=None, max_prompt_tokens=1000)
    skipped, rows = Skipped(), enumerate(SAME_ROW.values(), start=1)
    found = list(tasks.renderer_of(asked, tokenizer).tasks("x", rows, skipped))
    assert not skipped.unusable and len(found) == len(SAME_ROW)
    assert {one.prompt for one in found} == {
        f"<|im_start|>system\n{asked.system_prompt}<|im_end|>\n"
        f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"
    }
    assert len({one.prompt_ids for one in found}) == 1
    assert {one.answer for one in found} == {ANSWER} and {one.problem for one in found} == {PROBLEM}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow"])
def test_every_kind_of_file_gives_the_same_tasks(suffix, tokenizer, tmp_path):
    rows = [{"problem": f'"{i}",\n+\t{i} é?', "answer": str(2 * i)} for i in range(20)]
    path = write(tmp_path / f"rows{suffix}", rows)
    read = files.read(path)
    assert len(read) == 20 and [read[i] for i in (19, 0, 7)] == [rows[i] for i in (19, 0, 7)]
    found = tasks.load(options(path, eval_dataset=(str(path),)), tokenizer)
    assert trained_on(found) == [row["problem"] for row in rows]


@pytest.mark.real
@pytest.mark.parametrize("suffix", few([".parquet", ".arrow", ".stream.arrow"]))
def test_tables_that_do_not_fit_into_memory_stay_on_disk(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "IN_MEMORY", 10)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    rows = files.read(write(tmp_path / f"rows{suffix}", ROWS))
    assert isinstance(rows, LazyRows) == (suffix != ".parquet")  # Arrow is mapped into memory
    assert [rows[i] for i in (19, 0, 7, 6, 14)] == [ROWS[i] for i in (19, 0, 7, 6, 14)]


def test_countdown_games_need_no_prompt():
    """Whichever reward is asked for."""
    record = options("x", reward=("format",)).reader.record({"nums": [4, 19, 35], "target": 58})
    assert "[4, 19, 35]" in record.problem and "58" in record.problem
    nested = {"prompt": "p", "extra_info": {"numbers": [4, 19], "target": 58}}
    for row in ({"nums": [4, 19.0], "target": "58"}, nested):
        assert countdown.read(row) == {"numbers": [4, 19], "target": 58}
    for row in ({"answer": "7"}, {"nums": [], "target": 1}, {"nums": ["x"], "target": 1}):
        with pytest.raises(UnusableRow, match="numbers"):
            countdown.read(row)


def test_turns_keep_their_roles(tokenizer):
    turns = [("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "And 2+2?")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns], "answer": "4"}
    record = formats.read(row)
    assert list(record.messages) == turns and record.problem == "And 2+2?"
    whole = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    own = rendering.render(tokenizer, record.messages, "Another one.")
    assert own == whole + "<|im_start|>assistant\n"  # the data's system turn stays
    mine, none = (rendering.turns_of(record.messages, said, True) for said in ("Mine.", ""))
    replaced = rendering.render(tokenizer, mine, "")
    assert replaced == own.replace("Be brief.", "Mine.")
    assert "system" not in rendering.render(tokenizer, none, "")


def test_columns_can_be_chosen():
    row = {"text": "1+1?", "problem": "other", "meta": {"deep": {"gold": "2"}}, "answer": "3"}
    record = formats.read(row, Columns("text", "meta.deep.gold"))
    assert (record.problem, record.answers) == ("1+1?", ("2",))
    assert record.extra == {"problem": "other", "meta": {"deep": {"gold": "2"}}, "answer": "3"}
    with pytest.raises(UnusableRow, match="--prompt_column"):
        formats.read(row, Columns("nothing"))
    with pytest.raises(UnusableRow, match="gold"):
        formats.read(row, Columns("text", "gold"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "1"}, "no column messages or prompt or problem or .* or query; it has text"),
        ({"problem": None}, "column problem is empty"),
        ({"problem": ["1"]}, "column problem must be text"),
        ({"problem": "1", "answer": True}, "column answer must be text, got True"),
        ({"problem": "1", "answer": "x\n####"}, "column answer has nothing after ####"),
        ({"messages": [{"role": "robot", "content": "1"}]}, "role 'robot': use system, user"),
        ({"messages": [{"role": "assistant", "content": "1"}]}, "no turn of the user"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "more than text"),
    ],
)
def test_rows_that_mean_nothing_say_why(row, said):
    with pytest.raises(UnusableRow, match=said):
        formats.read(row)


def test_tests_of_a_row():
    whole = {"tests": {**TESTS, "fn_name": None}}
    assert code.read({"test_cases": json.dumps(TESTS)}) == whole  # C, PRIME
    assert code.read({"reward_model": {"ground_truth": json.dumps(TESTS)}}) == whole
    apps = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}
    assert code.read({"input_output": apps}) == {"tests": apps}
    lines = {"inputs": [["1", "2"]], "outputs": [["3"]]}
    joined = {"inputs": ["1\n2"], "outputs": ["3"], "fn_name": None}
    assert code.read({"input_output": lines}) == {"tests": joined}


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ({"inputs": [], "outputs": []}, "as many outputs"),
        ({"inputs": ["1"], "outputs": []}, "as many outputs"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": "a b"}, "no name"),
        ({"inputs": ["1", "2"], "outputs": ["", " \n"]}, "expects nothing, so that any program"),
        ("nonsense", '"inputs"'),
    ],
)
def test_tests_that_test_nothing_are_an_error_of_the_data(tests, said, tokenizer, tmp_path):
    with pytest.raises(UnusableRow, match=said):
        code.read({"test_cases": tests})
    rows = [{"problem": f"p{i}", "test_cases": tests} for i in range(5)]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match=r"row 1: .*5 of 5 rows cannot be used|5 of 5|4 of 4"):
        tasks.load(options(path, reward=("code",), eval_dataset=(str(path),)), tokenizer)


def test_a_source_is_taken_apart():
    name = "openai/gsm8k"
    assert sources.parse("a.jsonl") == Source("a.jsonl")
    assert sources.parse(f"{name}@train[10:-5]") == Source(name, None, "train", 10, -5)
    assert sources.parse(f"{name}:socratic@test") == Source(name, "socratic", "test")


def test_a_folder_has_the_splits_that_its_files_name(tmp_path, tokenizer):
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    write(folder / "data" / "train-00000-of-00002.parquet", ROWS[:10])
    write(folder / "data" / "train-00001-of-00002.parquet", ROWS[10:])
    write(folder / "data" / "test.jsonl", ROWS[:3])
    for name in ("dataset_info.json", "README.md"):
        (folder / name).write_text("{}")
    splits = sources.load_splits(sources.parse(str(folder)))
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 20, "test": 3}
    assert [splits["train"][i]["answer"] for i in (0, 9, 10, 19)] == ["0", "18", "20", "38"]
    data = tasks.load(options(folder), tokenizer)
    assert len(data.train.tasks) == 20 and len(eval_of(data)) == 3
    sliced = tasks.load(options(f"{folder}@train[5:9]", eval_dataset=(str(folder),)), tokenizer)
    assert trained_on(sliced) == [row["problem"] for row in ROWS[5:9]]
    assert len(eval_of(sliced)) == 3  # the test split
    with pytest.raises(UserError, match="no split tset"):
        sources.load_splits(sources.parse(f"{folder}@tset"))
    with pytest.raises(UserError, match="slice is empty"):
        sources.load_splits(sources.parse(f"{folder}[50:]"))


@pytest.mark.real
def test_folders_of_the_datasets_library(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    both = {name: datasets.Dataset.from_list(ROWS) for name in ("train", "test")}
    datasets.DatasetDict(both).save_to_disk(str(tmp_path / "saved"))
    splits = sources.load_splits(sources.parse(str(tmp_path / "saved")))
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 20, "test": 20}
    assert splits["train"][7] == ROWS[7]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no file with rows"):
        sources.load_splits(sources.parse(str(tmp_path / "empty")))


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ('{"problem": "1", "answer": "1"}\n{"problem": \n', "a.jsonl", "row 2 is no JSON object"),
        ("", "a.jsonl", "it is empty"),
        ("problem,answer\n", "a.csv", "it is empty"),
        ('[{"problem": "1"\n', "a.json", "is no JSON object"),
        ('{"problem": "1"}\n[{"problem": "1"}]', "a.json", "row 2 is no JSON object"),
        ("problem,answer\n1,2\n1,2,3\n", "a.csv", "line 3 has 3 fields, the header 2"),
        ("x", "a.txt", "unknown kind of file"),
        ("x", "a.arrow", "cannot be read"),
        ('{"text": "1", "label": "1"}\n' * 2, "a.jsonl", "row 1: no column messages or prompt"),
        ('{"problem": "1", "label": "1"}\n' * 2, "a.jsonl", "no column answer"),
        ('{"problem": "1", "answer": null}\n' * 2, "a.jsonl", "column answer is empty"),
    ],
)
def test_bad_files_say_what_and_where(content, name, said, tmp_path, tokenizer):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError) as error:
        tasks.load(options(path, eval_dataset=(str(path),)), tokenizer)
    assert said in str(error.value) and len(str(error.value).splitlines()) == 1


def test_files_from_windows(tmp_path, tokenizer):
    rows = "".join(json.dumps(row) + "\r\n" for row in ROWS)
    for name, text in (("a.jsonl", rows), ("a.json", json.dumps(ROWS))):
        (tmp_path / name).write_text(text, "utf-8-sig")
        assert len(tasks.load(options(tmp_path / name), tokenizer).train.tasks) == 15


def test_what_looks_like_dates_numbers_and_nulls_stays_as_it_is(tmp_path):
    """As `datasets.load_dataset` would not leave it."""
    rows = [{"a": "2020-01-01"}, {"a": "007"}, {"a": 10**30, "b": None}, {"a": ["1", 2], "c": {}}]
    assert [*files.read(write(tmp_path / "a.jsonl", rows))] == rows
    texts = [{"a": "007", "b": "NA"}, {"a": "1.50", "b": ""}, {"a": "2020-01-01", "b": "True"}]
    assert [*files.read(write(tmp_path / "a.csv", texts))] == texts


def test_mixed_types_and_missing_columns_are_left_out_and_told(tmp_path, load):
    odd = [{"problem": "a"}, {"problem": "b", "answer": {"x": 1}}, {"problem": ["c"], "answer": 1}]
    data = load([*ROWS[:14], *odd, *ROWS[14:]], eval_dataset=(str(tmp_path / "a.jsonl"),))
    assert len(data.train.tasks) == 20
    said = "\n".join(data.notes)
    assert "a.jsonl: of 23 rows not used: 1 no column answer" in said
    for reason in ("(row 15)", "answer must be text, got {'x': 1} (row 16)", "got ['c'] (row 17)"):
        assert reason in said
    assert data.train.tasks[14].id == "a.jsonl/17"  # numbered as in the file


def test_the_held_out_split_is_seeded_and_disjoint(load):
    """A repeated problem is on one side of it."""
    held_out = []
    for seed, copies in ((0, 1), (0, 1), (1, 1), (0, 3)):
        data = load(ROWS * copies, seed=seed)
        held_out.append({task.problem for task in eval_of(data)})
        assert len(held_out[-1]) == 5 and held_out[-1].isdisjoint(trained_on(data))
        assert (len(eval_of(data)), len(data.train.tasks)) == (5 * copies, 15 * copies)
    assert held_out[0] == held_out[1] != held_out[2]
    with pytest.raises(UserError, match="nothing is left to train on"):
        load([{"problem": "same", "answer": "1"}] * 10)


def test_every_episode_has_every_task_once_in_its_own_order(load):
    train = load(ROWS).train
    assert train.steps_per_episode(4) == 4  # 15 tasks: 4 + 4 + 4 + 3
    ids, position = [], 0
    while position < 30:
        drawn, position = train.draw(position, 4)  # never of two episodes at once
        ids += [one.id for one in drawn]
    first, second = ids[:15], ids[15:]
    assert len(set(first)) == len(set(second)) == 15 and first != second
    assert sorted(first) == sorted(second)
    assert [one.id for one in train.draw(19, 4)[0]] == second[4:8]
    drawn, position = train.draw(13, 4)
    assert [one.id for one in drawn] == first[13:] and position == 15


def test_a_large_set_is_rendered_when_it_is_drawn(tmp_path, tokenizer, monkeypatch):
    long = {"problem": "x" * 500, "answer": "1"}
    rows = [long if i % 4 == 0 else ROWS[i % 20] for i in range(200)]
    path = write(tmp_path / "a.jsonl", rows)
    asked = options(path, eval_dataset=(str(path),), eval_problems=7)
    small = tasks.load(asked, tokenizer)
    monkeypatch.setattr(tasks, "MOST_EAGER", 100)
    monkeypatch.setattr(tasks, "PROBED", 50)
    large = tasks.load(asked, tokenizer)
    assert isinstance(large.train.tasks, tasks.LazyTasks) and len(eval_of(large)) == 7
    assert any("of 50 rows not used" in note for note in large.notes)
    found, position = [], 0
    while position < 200:
        drawn, position = large.train.draw(position, 30)
        found += drawn
    assert sorted(one.id for one in found) == sorted(one.id for one in small.train.tasks)
    assert large.train.draw(0, 30) == large.train.draw(0, 30)
    all_long = tasks.LazyTasks("x", [long] * 200, large.train.tasks.renderer)
    with pytest.raises(UserError, match="no row of a whole episode"):
        tasks.FiniteTasks(all_long, 0).draw(0, 3)


def test_long_prompts_are_dropped_and_counted_never_cut(tmp_path, tokenizer, load):
    other = str(write(tmp_path / "e.jsonl", ROWS))
    data = load([*ROWS, {"problem": "x" * 500, "answer": "1"}], eval_dataset=(other,))
    note, warning = data.notes
    assert warning.startswith("warning: ") and "are also trained on" in warning
    assert note.startswith("a.jsonl: of 21 rows not used: 1 longer than 200 tokens")
    task, *others = data.train.tasks
    assert len(others) == 19 and tokenizer.decode(task.prompt_ids) == task.prompt
    assert list(data.evals) == ["e"]


def test_all_dropped_says_which_length_would_do(tmp_path, tokenizer, load):
    longest = max(len(task.prompt_ids) for task in load(ROWS).train.tasks)
    with pytest.raises(UserError, match=f"--max_prompt_tokens {longest}"):
        load(ROWS, max_prompt_tokens=5)
    with pytest.raises(UserError, match=r"all .* prompts of embedded"):
        tasks.load(options("embedded", max_prompt_tokens=10), tokenizer)
    with pytest.raises(UserError, match="no such file"):
        tasks.load(options(tmp_path / "none.jsonl"), tokenizer)


def test_eval_sets_by_name(tmp_path, tokenizer):
    path = str(write(tmp_path / "a.jsonl", ROWS))
    sets = {"first": path, "MATH-500": f"{path}[:3]"}
    columns = [{"text": row["problem"], "gold": row["answer"]} for row in ROWS]
    mine = str(write(tmp_path / "mine.jsonl", columns))
    for given in ([f"{name}={source}" for name, source in sets.items()], [json.dumps(sets)]):
        asked = options(mine, eval_dataset=tuple(given), prompt_column="text", answer_column="gold")
        data = tasks.load(asked, tokenizer)  # whose columns are the training set's alone
        sizes = {name: len(found) for name, found in data.evals.items()}
        assert sizes == {"first": 20, "MATH-500": 3}
    assert list(sources.eval_sources(("HuggingFaceH4/MATH-500",))) == ["MATH-500"]
    for given in ((path, path), ('{"a": 3}',), ('{"a"',), ("a=",)):
        with pytest.raises(UserError):
            sources.eval_sources(given)


def test_eval_problems_are_drawn_the_same_for_every_run(tmp_path, load):
    test = (str(write(tmp_path / "b.jsonl", ROWS)),)
    data = [load(ROWS, eval_dataset=test, eval_problems=7, seed=seed) for seed in (0, 1)]
    found = [eval_of(each) for each in data]
    assert found[0] == found[1] and len({task.id for task in found[0]}) == 7


def test_a_template_that_refuses_or_writes_nothing_is_told():
    class Refuses:
        def apply_chat_template(self, turns, **_):
            if len(turns) > 1:
                raise ValueError("System role\nnot supported")
            return ""

    for system_prompt in ("Be brief.", ""):
        with pytest.raises(UserError, match="refuses a conversation of"):
            rendering.render(Refuses(), "1+1?", system_prompt)


ROLES_ALONE = "{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>\n{% endfor %}"
BEGINNINGS = "{{ messages[-1].content[:8] }}"


@pytest.mark.real
@pytest.mark.parametrize("template", [ROLES_ALONE, BEGINNINGS])
def test_a_template_that_drops_what_the_user_asks_is_told(template, tmp_path):
    forgetful = base_model.load_tokenizer(embedded.BASE)
    forgetful.chat_template = template
    rows = [{"problem": "", "answer": "1"}, {"problem": "What is\n1 + 1?", "answer": "2"}]
    rows += [{"problem": "what is 1 + 1? ", "answer": "2"}, *ROWS[2:]]
    with pytest.raises(UserError, match=r"a.jsonl rows \d+ and \d+: different problems .* drops"):
        tasks.load(options(write(tmp_path / "a.jsonl", rows)), forgetful)
    with pytest.raises(UserError, match=r"rows 1 and \d+: different problems have the same prompt"):
        tasks.load(options("embedded", eval_dataset=("embedded",)), forgetful)


@pytest.mark.real
def test_problems_that_differ_in_spaces_and_case_may_have_one_prompt(tmp_path):
    trims = base_model.load_tokenizer(embedded.BASE)
    trims.chat_template = "{{ messages[-1].content | lower | trim }}"
    texts = ("1 + 1 = X", "1 + 1 = X ", " 1 + 1 = x\n")
    path = write(tmp_path / "a.jsonl", [{"problem": text, "answer": "2"} for text in texts])
    found = tasks.load(options(path, eval_dataset=("embedded",)), trims)
    assert {task.prompt for task in found.train.tasks} == {"1 + 1 = x"}


LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
)


@pytest.mark.real
@pytest.mark.parametrize("template", few(LOOPS))
@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_template_that_loops_is_stopped(template, in_a_thread, monkeypatch):
    monkeypatch.setattr(rendering, "LONGEST_S", 0.2)
    loops = base_model.load_tokenizer(embedded.BASE)
    loops.chat_template = template
    with ThreadPoolExecutor(1) as threads, pytest.raises(UserError, match=r"longer than 0\.2 s"):
        if in_a_thread:
            threads.submit(rendering.render, loops, "1 + 1?", "").result()
        rendering.render(loops, "1 + 1?", "")
    loops.chat_template = "{{ messages[0].content }}"
    assert rendering.render(loops, "1 + 1?", "") == "1 + 1?"


def test_the_system_prompt_is_what_the_reward_asks_for_unless_given(tmp_path):
    path = write(tmp_path / "a.jsonl", ROWS)
    mine = tmp_path / "mine.py"
    mine.write_text("def f(completion): return 1")
    for reward, expected in [
        ((), THINK_AND_ANSWER),
        (("boxed", "format=0.1"), maths.PROMPT),
        (("code",), code.PROMPT),
        ((f"{mine}:f",), ""),
        ((f"{mine}:f", "boxed=0"), maths.PROMPT),
    ]:
        assert options(path, reward, system_prompt=None).system_prompt == expected
    assert options("embedded", system_prompt=None).system_prompt == ""
    tiny = Config(model="embedded", dataset=str(path))
    assert data_options(tiny).system_prompt == ""  # it cannot follow one
    assert data_options(replace(tiny, system_prompt="mine")).system_prompt == "mine"
    assert data_options(replace(tiny, model="other")).system_prompt == THINK_AND_ANSWER
    assert options(path, system_prompt="mine").system_prompt == "mine"


def test_the_system_prompt_of_an_adapter_goes_on_with_it(tmp_path):
    def asked(config):
        return data_options(replace(config, adapter=str(tmp_path))).system_prompt

    other = Config(model="other", dataset="rows.jsonl")
    assert asked(other) == THINK_AND_ANSWER  # nothing says what the adapter was told
    for prompt in ("Be brief.", ""):
        use = adapter_use.Use("other", prompt)
        (tmp_path / adapter_use.USE_FILE).write_text(adapter_use.to_json(use))
        assert asked(other) == prompt
        assert asked(replace(other, system_prompt="mine")) == "mine"
    assert all(tag in THINK_AND_ANSWER for tag in ("<think>", "</think>", "<answer>", "</answer>"))


def test_the_embedded_problems_never_end_and_follow_the_position(tokenizer):
    data = tasks.load(options("embedded", eval_problems=50), tokenizer)
    first, position = data.train.draw(0, 32)
    assert len({task.id for task in first}) == 32 and position == 32
    assert first[5:] == data.train.draw(5, 27)[0] and first != data.train.draw(32, 32)[0]
    trained = {t.problem for t in data.train.draw(0, 600)[0]}
    held_out = {task.problem for task in eval_of(data)}
    assert trained.isdisjoint(held_out) and len(eval_of(data)) == 50
    other = tasks.load(options("embedded", eval_problems=50, seed=3), tokenizer)
    assert eval_of(other) == eval_of(data)  # every run is measured on the same problems
    assert other.train.draw(0, 32)[0] != first


def test_task_ids_do_not_depend_on_how_the_path_is_written(tmp_path, tokenizer, here):
    path = write(tmp_path / "a.jsonl", ROWS)
    loaded = [tasks.load(options(name), tokenizer) for name in (path, "a.jsonl", "./a.jsonl")]
    assert len({tuple(task.id for task in data.train.tasks) for data in loaded}) == 1


@pytest.mark.real
def test_data_shows_what_a_run_would_train_on(tmp_path, capfd):
    rows = [*ROWS, ROWS[3], {"problem": "x" * 500, "answer": "1"}, {"problem": "y"}]
    path = str(write(tmp_path / "a.jsonl", rows))
    flags = [path, "--model", "embedded", "--reward", "boxed", "--max_prompt_tokens", "200"]
    assert cli.main(["data", *flags, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    facts, first = found["facts"], found["examples"][0]
    assert (facts["evaluated on"], facts["evaluation rows"]) == ("held_out", 2)
    assert found["rows"] == 21
    assert facts["columns"] == {"problem -> answer": 20} and facts["repeated problems"] == 1
    assert len(found["examples"]) == 5 and len(found["lengths"]) == 20
    (_, prompt), (_, answer) = first["parts"]
    assert answer == "0" and prompt.endswith("<|im_start|>assistant\n")
    assert first["tokens"] == found["lengths"][0] and facts["added system prompt"] == ""
    assert any("no column answer" in line and "(row 23)" in line for line in found["not_used"])
    assert any(line.startswith("1 longer than 200") for line in found["not_used"])
    assert cli.main(["data", *flags]) == 0
    text = capfd.readouterr().out
    told = (
        "21 rows",
        "--- row 5,",
        "longest",
        "1 longer than 200",
        embedded.KNOWS["embedded"],
        "problems are asked otherwise, such as 'What is ",
    )
    assert all(part in text for part in told)
    assert cli.main(["data", path, "--reward", "code", "--model", "embedded"]) == 2
    assert "no tests" in capfd.readouterr().err


GIGABYTE = """
import sys
from unslothrl.data.formats import Reader
from unslothrl.data.tasks import DataOptions, load
(path,) = sys.argv[1:]
class Tokenizer:
    def apply_chat_template(self, turns, **_): return turns[-1]["content"]
    def __call__(self, texts, **_): return {"input_ids": [[1, 2, hash(text)] for text in texts]}
asked = DataOptions(path, holdout=0.1, eval_problems=100, max_prompt_tokens=9, seed=0,
    reader=Reader(needing=("boxed",)))
data = load(asked, Tokenizer())
assert len(data.train.draw(0, 640)[0]) == 640
status = open("/proc/self/status").read()  # getrusage would count the test's own process too
print(len(data.train.tasks), int(status.split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.slow
@pytest.mark.real
def test_a_large_file_is_streamed(tmp_path):
    """150 MB here, in less memory than it has itself; bench/data.py at f11e666 had a gigabyte."""
    count, filler = 150_000, "x" * 1000
    path = tmp_path / "large.jsonl"
    rows = (f'{{"problem": "{i}{filler}", "answer": "{i}"}}\n' for i in range(count))
    path.write_text("".join(rows))
    said = python("-c", GIGABYTE, path, cwd=ROOT).stdout
    rows, memory_mb = map(int, said.split())
    assert rows == count - 15_000 and memory_mb < 150


def test_a_wrong_column_is_named_where_a_share_is_held_out(tmp_path):
    path = write(tmp_path / "a.jsonl", ROWS)
    found = data_options(Config(dataset=str(path), prompt_column="nosuch"))
    with pytest.raises(UserError, match="no column nosuch; it has problem, answer"):
        sources.split(found, found.reader.prompt)


def test_rows_are_numbered_as_in_the_file_whichever_side_they_are_on(load):
    for broken in (3, 17, 30):
        rows = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(40)]
        rows[broken - 1]["answer"] = None
        notes = load(rows, holdout=0.5).notes
        assert [note for note in notes if "column answer is empty" in note] != []
        assert all(f"(row {broken})" in note or "too few" in note for note in notes)


@pytest.mark.real
def test_data_refuses_a_test_split_that_a_run_would_refuse(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    config = Config(dataset=str(tmp_path), model="embedded")
    write(tmp_path / "test.jsonl", [*ROWS[:3], {"problem": "1?"}])
    few, note = describe.look(config)["not_used"]
    assert few.startswith("eval set held_out: 3 problems are too few to tell a change from chance")
    assert note.startswith("eval set held_out: of 4 rows not used: 1 no column answer")
    write(tmp_path / "test.jsonl", [{"text": "1?"}] * 2)
    with pytest.raises(UserError, match=f"^eval set held_out row 1 of {tmp_path}: no column "):
        describe.look(config)


@pytest.mark.real
def test_hub_ids_that_cannot_be_had_are_one_line():
    with pytest.raises(UserError, match=r"\A.*no-such-owner/no-such-set.*\Z"):
        sources.load_splits(sources.parse("no-such-owner/no-such-set"))
