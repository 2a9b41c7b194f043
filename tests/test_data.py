"""Rows to tasks: formats, splits, prompts, and bad input that says what and where."""

import json
from types import SimpleNamespace

import pytest

from unslothrl import base_model, embedded
from unslothrl.data import formats, prompts, sources, tasks
from unslothrl.errors import UserError


@pytest.fixture(scope="module")
def tokenizer():
    return base_model.load_tokenizer(embedded.BASE)


def options(dataset, **changes):
    values = {
        "dataset": str(dataset),
        "eval_dataset": None,
        "system_prompt": "",
        "max_prompt_tokens": 200,
        "seed": 0,
        "holdout": 0.25,
        "eval_problems": 0,
    }
    return SimpleNamespace(**{**values, **changes})


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(20)]


def test_gold_answers_by_format():
    assert formats.read_row({"problem": "p", "answer": " 7 "}, "x") == ("p", "7")
    assert formats.read_row({"question": "q", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}, "x") == (
        "q",
        "7",
    )
    assert formats.read_row({"problem": "p", "answer": 7}, "x") == ("p", "7")


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ('{"problem": "1", "answer": "1"}\n{"problem": \n', "a.jsonl", "line 2 is not JSON"),
        ('{"problem": "1", "answer": "1"}\n[1]\n', "a.jsonl", "line 2 must be an object, got list"),
        ("", "a.jsonl", "it is empty"),
        ("\n\n", "a.jsonl", "it is empty"),
        ("[]", "a.json", "it is empty"),
        ('[{"problem": "1"\n', "a.json", "is not JSON"),
        ('{"problem": "1", "answer": "1"}', "a.json", "must be a list of objects"),
        ("x", "a.txt", "unknown kind of file"),
        ('{"text": "1", "label": "1"}\n' * 2, "a.jsonl", "row 1: no column problem or question"),
        (
            '{"problem": "1", "label": "1"}\n' * 2,
            "a.jsonl",
            "no column answer; it has",
        ),
        (
            '{"problem": "1", "answer": null}\n' * 2,
            "a.jsonl",
            "answer must be text, got None",
        ),
        ('{"problem": "  ", "answer": "1"}\n' * 2, "a.jsonl", "column problem must be text"),
    ],
)
def test_bad_files_say_what_and_where(content, name, said, tmp_path, tokenizer):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError) as error:
        tasks.load(options(path), tokenizer)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_file_that_is_not_there(tmp_path, tokenizer):
    with pytest.raises(UserError, match="no such file"):
        tasks.load(options(tmp_path / "none.jsonl"), tokenizer)


def test_bytes_that_are_not_utf8(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(b'{"problem": "\xff"}\n')
    with pytest.raises(UserError, match="byte 13 is not UTF-8"):
        tasks.load(options(tmp_path / "a.jsonl"), tokenizer)


def test_the_held_out_split_is_seeded_and_disjoint(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", ROWS)
    first = tasks.load(options(path), tokenizer)
    again = tasks.load(options(path), tokenizer)
    other = tasks.load(options(path, seed=1), tokenizer)
    held_out = {task.problem for task in first.eval}
    assert len(held_out) == 5  # a quarter of 20
    assert held_out.isdisjoint(task.problem for task in first.train.tasks)
    assert len(first.train.tasks) == 15
    assert held_out == {task.problem for task in again.eval}
    assert held_out != {task.problem for task in other.eval}


def test_every_episode_has_every_task_once_in_its_own_order(tmp_path, tokenizer):
    data = tasks.load(options(write(tmp_path / "a.jsonl", ROWS)), tokenizer)
    assert data.train.steps_per_episode(4) == 4  # 15 tasks: 4 + 4 + 4 + 3
    episodes = [
        [task.id for at in (0, 4, 8, 12) for task in data.train.draw(first + at, 4)]
        for first in (0, 15)
    ]
    assert [len(set(ids)) for ids in episodes] == [15, 15]
    assert episodes[0] != episodes[1]
    assert sorted(episodes[0]) == sorted(episodes[1])
    assert [t.id for t in data.train.draw(19, 4)] == episodes[1][4:8]
    assert [t.id for t in data.train.draw(13, 4)] == episodes[0][13:]  # never two episodes at once


def test_long_prompts_are_dropped_and_counted_never_cut(tmp_path, tokenizer):
    rows = [*ROWS, {"problem": "x" * 500, "answer": "1"}]
    path = write(tmp_path / "a.jsonl", rows)
    data = tasks.load(options(path, eval_dataset=str(write(tmp_path / "e.jsonl", ROWS))), tokenizer)
    assert data.dropped_prompts == 1
    assert len(data.train.tasks) == 20
    task = data.train.tasks[0]
    assert tokenizer.decode(task.prompt_ids) == task.prompt
    assert data.eval_name == "e"


def test_all_dropped_says_which_length_would_do(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", ROWS)
    data = tasks.load(options(path), tokenizer)
    longest = max(len(task.prompt_ids) for task in [*data.train.tasks])
    with pytest.raises(UserError, match=f"--max_prompt_tokens {longest}"):
        tasks.load(options(path, max_prompt_tokens=5), tokenizer)


def test_the_prompt_is_the_chat_template_with_the_system_prompt(tokenizer):
    text = prompts.render(tokenizer, "1+1?", "Be brief.")
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert prompts.render(tokenizer, "1+1?", "") == text.partition("<|im_end|>\n")[2]


def test_the_system_prompt_depends_on_the_data_unless_given(tmp_path):
    path = write(tmp_path / "a.jsonl", ROWS)
    assert tasks.system_prompt_of(options(path, system_prompt=None)) == prompts.SYSTEM_PROMPT
    assert tasks.system_prompt_of(options("embedded", system_prompt=None)) == ""
    assert tasks.system_prompt_of(options(path, system_prompt="mine")) == "mine"
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert tag in prompts.SYSTEM_PROMPT


def test_the_embedded_problems_never_end_and_follow_the_position(tokenizer):
    data = tasks.load(options("embedded", eval_problems=50), tokenizer)
    first = data.train.draw(0, 32)
    assert len({task.id for task in first}) == 32
    assert first[5:] == data.train.draw(5, 27)
    assert first != data.train.draw(32, 32)
    trained = {t.problem for t in data.train.draw(0, 600)}
    assert trained.isdisjoint(task.problem for task in data.eval)
    assert len(data.eval) == 50
    other = tasks.load(options("embedded", eval_problems=50, seed=3), tokenizer)
    assert other.eval == data.eval  # every run is measured on the same problems
    assert other.train.draw(0, 32) != first


def test_the_embedded_problems_with_prompts_that_never_fit(tokenizer):
    with pytest.raises(UserError, match=r"all .* prompts of embedded"):
        tasks.load(options("embedded", max_prompt_tokens=10), tokenizer)


def test_hub_ids_that_cannot_be_had_are_one_line():
    with pytest.raises(UserError) as error:
        sources.load_splits("no-such-owner/no-such-set")
    assert "no-such-owner/no-such-set" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_eval_problems_are_drawn_the_same_for_every_run(tmp_path, tokenizer):
    train, test = write(tmp_path / "a.jsonl", ROWS), write(tmp_path / "b.jsonl", ROWS)
    found = [
        tasks.load(
            options(train, eval_dataset=str(test), eval_problems=7, seed=seed), tokenizer
        ).eval
        for seed in (0, 1)
    ]
    assert found[0] == found[1]
    assert len({task.id for task in found[0]}) == 7


def test_rows_are_numbered_as_in_the_file(tmp_path, tokenizer):
    rows = [*ROWS[:14], {"prob": "x", "answer": "1"}, *ROWS[14:]]
    with pytest.raises(UserError, match="row 15: no column problem"):
        tasks.load(options(write(tmp_path / "a.jsonl", rows)), tokenizer)


def test_a_repeated_problem_is_on_one_side_of_the_split(tmp_path, tokenizer):
    data = tasks.load(options(write(tmp_path / "a.jsonl", ROWS * 3)), tokenizer)
    held_out = {task.problem for task in data.eval}
    assert len(held_out) == 5 and len(data.eval) == 15
    assert held_out.isdisjoint(task.problem for task in data.train.tasks)
    same = [{"problem": "same", "answer": "1"}] * 10
    with pytest.raises(UserError, match="1 different problems leave nothing"):
        tasks.load(options(write(tmp_path / "b.jsonl", same)), tokenizer)


@pytest.mark.parametrize("answer", ["x\n####", "####  ", True, float("nan"), "\ud800"])
def test_gold_answers_that_mean_nothing_are_refused(answer, tmp_path, tokenizer):
    rows = [{"problem": "a", "answer": answer}] * 3
    with pytest.raises(UserError, match="row 1: column answer"):
        tasks.load(options(write(tmp_path / "a.jsonl", rows)), tokenizer)


def test_files_from_windows_and_hostile_json(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\r\n" for r in ROWS), "utf-8-sig")
    assert len(tasks.load(options(tmp_path / "a.jsonl"), tokenizer).train.tasks) == 15
    for text in ("[" * 100_000, '{"problem": ' + "9" * 5000 + "}"):
        (tmp_path / "b.jsonl").write_text(text + "\n")
        with pytest.raises(UserError, match="line 1 is not JSON"):
            tasks.load(options(tmp_path / "b.jsonl"), tokenizer)


def test_task_ids_do_not_depend_on_how_the_path_is_written(tmp_path, tokenizer, monkeypatch):
    path = write(tmp_path / "a.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    ids = [
        [task.id for task in tasks.load(options(name), tokenizer).train.tasks]
        for name in (path, "a.jsonl", "./a.jsonl")
    ]
    assert ids[0] == ids[1] == ids[2]
