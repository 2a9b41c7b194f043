"""Rows of a file as the tables that a trainer reads: what is left out, what is held out."""

import numpy as np
import pytest
from byte_tokenizers import ByteTokenizer
from environment_files import rows_in
from test_offline_examples import assistant, system, user
from test_offline_sequences import AGAIN, ASKED, BOT, CHATML, END, NO_SYSTEM, START, asked

from unslothrl.config.offline_options import SftOptions
from unslothrl.embedded import task as arithmetic
from unslothrl.errors import UserError
from unslothrl.offline import tables
from unslothrl.offline.sequences import Writer
from unslothrl.offline.tables import DPO, RM, SFT

TOKENIZER = ByteTokenizer((START, END), END, CHATML)


def options(dataset, **changed):
    given = {
        "dataset": dataset, "eval_dataset": (), "holdout": 0.1, "eval_problems": 0,
        "max_length": 1000, "seed": 0,
    }  # fmt: skip
    return SftOptions(**given | changed)


def load(given, form=SFT, tokenizer=TOKENIZER):
    return tables.load(given, form, Writer(tokenizer))


def loaded(folder, rows, form=SFT, tokenizer=TOKENIZER, **changed):
    """Of rows that are those to evaluate on as well."""
    data = rows_in(folder, rows)
    return load(options(data, **{"eval_dataset": (str(data),), **changed}), form, tokenizer)


def texts(rows, name="input_ids"):
    return [TOKENIZER.decode(row[name].tolist()) for row in rows]


def example(number, reply="yes"):
    return {"prompt": f"{number}?", "completion": reply}


def test_a_row_of_each_kind(tmp_path):
    rows = [{"prompt": "1?", "chosen": "a", "rejected": "b"}]
    (sft,) = loaded(tmp_path, rows, SFT).train
    begun, reply = TOKENIZER.encode(ASKED), TOKENIZER.encode("a" + END)
    assert sft["input_ids"].tolist() == begun + reply
    assert sft["labels"].tolist() == [-100] * len(begun) + reply
    assert sft["labels"].dtype == sft["input_ids"].dtype == np.int32
    (dpo,) = loaded(tmp_path, rows, DPO).train
    found = [texts([dpo], name)[0] for name in ("prompt_ids", "chosen_ids", "rejected_ids")]
    assert found == [ASKED, "a" + END, "b" + END]
    (rm,) = loaded(tmp_path, rows, RM).train
    replies = {name: TOKENIZER.decode(ids.tolist()) for name, ids in rm.items()}
    assert replies == {"chosen_ids": f"{ASKED}a{END}", "rejected_ids": f"{ASKED}b{END}"}


def test_what_is_learnt_of_a_pair_stands_beside_answers_of_several_turns(tmp_path):
    several = [assistant("a"), user("2?"), assistant("bb")]
    rows = [{"prompt": "1?", "chosen": said, "rejected": "c"} for said in (several, "a")]
    long, short = loaded(tmp_path, rows, DPO).train
    read = len(TOKENIZER.encode(AGAIN))
    assert long["chosen_learnt"].tolist() == [1] * 2 + [0] * read + [1] * 3
    assert short["chosen_learnt"].tolist() == [1, 1]  # the rows of a batch are alike
    assert "rejected_learnt" not in long and "rejected_learnt" not in short  # all is
    (found, _) = loaded(tmp_path, rows, RM).train  # it scores the whole
    assert texts([found], "chosen_ids") == [f"{ASKED}a{END}{AGAIN}bb{END}"]


def test_rows_that_cannot_be_used_are_counted_by_reason(tmp_path):
    pairs = [{"prompt": f"{n}?", "chosen": "a", "rejected": "b"} for n in range(6)]
    pairs[1]["rejected"] = pairs[3]["rejected"] = "a"
    pairs[4]["chosen"] = ""
    data = rows_in(tmp_path, pairs)
    found = load(options(data, eval_dataset=(f"mine={data}",)), DPO)
    assert len(found.train) == len(found.evaluation) == 3
    assert found.evaluation_name == "mine"
    reasons = "2 chosen and rejected are equal (row 2)", "1 column chosen is empty (row 5)"
    parts = f"dataset {data}", "eval set mine"
    assert found.notes == tuple(
        f"{part}: of 6 rows not used: {reason}" for part in parts for reason in reasons
    )


def test_more_than_half_unusable_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"row 2: no column .* \(2 of 3 rows cannot be used\)"):
        loaded(tmp_path, [example(1), example(2, ""), {"prompt": "3?"}])


def test_a_template_that_refuses_some_rows_leaves_those_out(tmp_path):
    turns = [user("1?"), assistant("a")]
    rows = [{"messages": turns}, {"messages": [system("s"), *turns]}]
    tokenizer = ByteTokenizer((START, END), END, NO_SYSTEM)
    found = loaded(tmp_path, rows, tokenizer=tokenizer)
    assert len(found.train) == 1 and "no system role" in found.notes[0]
    found = loaded(tmp_path, rows, tokenizer=tokenizer, system_prompt="")
    assert len(found.train) == 2 and found.notes == ()


def test_rows_that_are_too_long_are_dropped_not_cut(tmp_path):
    rows = [example(1), example(2, "y" * 100), example(3)]
    length = len(TOKENIZER.encode(ASKED + "yes" + END))
    found = loaded(tmp_path, rows, max_length=length)
    assert texts(found.train) == [f"{asked(f'{n}?')}{BOT}yes{END}" for n in (1, 3)]
    assert f"1 longer than {length} tokens (the longest: {length + 97})" in found.notes[0]
    fix = f"all 3 rows .* the shortest by {length - 10}: set --max_length {length + 97}$"
    with pytest.raises(UserError, match=fix):
        loaded(tmp_path, rows, max_length=10)


@pytest.mark.parametrize("form", [DPO, RM])
def test_the_length_of_a_pair_is_that_of_its_longer_row(form, tmp_path):
    rows = [{"prompt": "1?", "chosen": "a", "rejected": "b" * 9}]
    length = len(TOKENIZER.encode(ASKED + "b" * 9 + END))
    assert len(loaded(tmp_path, rows, form, max_length=length).train) == 1
    with pytest.raises(UserError, match="--max_length"):
        loaded(tmp_path, rows, form, max_length=length - 1)


def test_what_is_held_out_is_not_trained_on(tmp_path):
    """Not even where a problem is repeated with another reply."""
    data = rows_in(tmp_path, [example(n % 20, f"reply {n}") for n in range(60)])
    found = load(options(data, holdout=0.2))
    train, held_out = (
        {text.partition(BOT)[0] for text in texts(part)} for part in (found.train, found.evaluation)
    )
    assert len(held_out) == 4 and len(train) == 16 and not train & held_out
    assert len(found.train) == 48 and len(found.evaluation) == 12
    assert texts(load(options(data, holdout=0.2)).evaluation) == texts(found.evaluation)
    other = load(options(data, holdout=0.2, seed=1)).evaluation
    assert texts(other) != texts(found.evaluation)


def test_at_most_so_many_rows_are_evaluated(tmp_path):
    rows = [example(number) for number in range(30)]
    some = texts(loaded(tmp_path, rows, eval_problems=5).evaluation)
    assert len(set(some)) == 5 and set(some) < set(texts(loaded(tmp_path, rows).evaluation))
    assert texts(loaded(tmp_path, rows, eval_problems=5, seed=9).evaluation) == some


def test_a_system_prompt_that_all_rows_have_is_that_of_the_adapter(tmp_path, monkeypatch):
    def found(systems, default_prompt="", **changed):
        monkeypatch.setattr(tables, "default_prompt", lambda options: default_prompt)
        row = {"instruction": "1?", "output": "yes"}
        return loaded(tmp_path, [{**row, "system": said} for said in systems], **changed)

    assert found(["Rhyme.", "Rhyme."]).system_prompt == "Rhyme."
    assert found(["Rhyme.", "Count."]).system_prompt == ""
    assert found(["Rhyme.", ""]).system_prompt == ""
    assert found(["Rhyme.", ""], default_prompt="Rhyme.").system_prompt == "Rhyme."
    assert found(["Rhyme.", ""], system_prompt="", default_prompt="Rhyme.").system_prompt == ""
    mixed = found(["Rhyme.", ""], default_prompt="Be brief.")
    ends = [text.partition(END)[0][-9:] for text in texts(mixed.train)]
    assert ends == ["em\nRhyme.", "Be brief."]


@pytest.mark.real
@pytest.mark.parametrize("form", [SFT, DPO, RM])
def test_the_embedded_rows_are_never_held_out_problems(form):
    """Nor are those of the evaluation among the training rows, whatever the seed."""
    given = options("embedded", seed=3)
    train, evaluation, _ = tables.rows_of(given, form)
    held_out = {row["prompt"] for row in tables.embedded_pairs("test", 0, 200)}
    assert len(train) == tables.EMBEDDED_ROWS and len(evaluation) == tables.EMBEDDED_EVAL_ROWS
    assert not held_out & {row["prompt"] for row in train}
    assert held_out == {row["prompt"] for row in evaluation}
    problems = arithmetic.problems("test", 0)
    tested = {next(problems)["problem"] for _ in range(200)}
    assert not tested & {row["prompt"] for row in train}
    if form is SFT:  # 2,000 rows take a second
        found = load(given, form)
        assert len(found.train) == len(train) and found.notes == ()


def test_a_margin_is_in_every_row_or_in_none(tmp_path):
    row = {"prompt": "1?", "chosen": "a", "rejected": "b"}
    found = loaded(tmp_path, [row, {**row, "margin": 2}], RM)
    assert [each["margin"] for each in found.train] == [0.0, 2.0]


def test_the_fingerprint_is_of_every_number(tmp_path):
    row = {"input_ids": np.array([1, 2], np.int32), "labels": np.array([-100, 2], np.int32)}
    print_ = tables.fingerprint([row])
    assert print_.startswith("1 rows, ") and print_ == tables.fingerprint([dict(row)])
    changed = {**row, "labels": np.array([1, 2], np.int32)}
    assert print_ not in (tables.fingerprint([changed]), tables.fingerprint([row, row]))
