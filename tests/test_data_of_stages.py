"""`unslothrl data sft`, `data dpo` and `data rm`: rows as they are trained on."""

import json

import pytest

from unslothrl.commands import cli

pytestmark = pytest.mark.real

PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TURNS = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "a"}]
MORE = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "b\nc"}]


@pytest.fixture
def shown(tmp_path, capsys):
    """-> show(command, rows, *flags): (exit code, what --json prints, the text for people)."""

    def show(command, rows, *flags):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["data", command, str(path), "--model", "embedded", "--eval_dataset", str(path)]
        code = cli.main([*words, *flags, "--json"])
        found = capsys.readouterr()
        if code:
            return code, found.err, ""
        assert cli.main([*words, *flags]) == 0
        return code, json.loads(found.out), capsys.readouterr().out

    return show


def test_what_is_learnt_of_a_conversation_is_marked(shown):
    _, found, text = shown("sft", [{"messages": [*TURNS, *MORE]}, {"prompt": "3?", "answer": "d"}])
    first, second = (example["parts"] for example in found["examples"])
    assert first == [
        ["read", PROMPT.format("1?")], ["learnt", "a<|im_end|>"],
        ["read", "\n" + PROMPT.format("2?")], ["learnt", "b\nc<|im_end|>"],
    ]  # fmt: skip
    assert second == [["read", PROMPT.format("3?")], ["learnt", "d<|im_end|>"]]
    assert found["facts"]["columns"] == {"messages": 1, "prompt -> answer": 1}
    assert found["facts"]["trained rows"] == 2
    assert 0 < found["facts"]["learnt tokens"] < sum(found["lengths"])
    assert "learnt | b\nlearnt | c<|im_end|>\n" in text and "\nread   | <|im_start|>" in text
    everything = shown("sft", [{"messages": TURNS}], "--no_assistant_only_loss")[1]
    assert [part for part, _ in everything["examples"][0]["parts"]] == ["learnt"]


def test_of_an_answer_with_turns_of_others_only_the_assistants_are_learnt(shown):
    row = {"prompt": TURNS[:1], "chosen": [TURNS[1], *MORE], "rejected": [MORE[1]]}
    _, found, text = shown("dpo", [row, {"prompt": "1?", "chosen": "a", "rejected": "b"}])
    first, second = found["examples"]
    assert first["parts"] == [
        ["prompt", PROMPT.format("1?")], ["chosen", "a<|im_end|>"],
        ["chosen, read", "\n" + PROMPT.format("2?")], ["chosen", "b\nc<|im_end|>"],
        ["rejected", "b\nc<|im_end|>"],
    ]  # fmt: skip
    assert [part for part, _ in second["parts"]] == ["prompt", "chosen", "rejected"]
    learnt = len("a") + len("b\nc") + len("b\nc") + len("a") + len("b") + 5  # a stop each
    assert found["facts"]["learnt tokens"] == learnt
    assert "chosen, read | <|im_start|>user" in text


@pytest.mark.parametrize(
    ("command", "row", "columns", "parts"),
    [
        ("rm", {"chosen": TURNS, "rejected": [TURNS[0], MORE[1]]}, "chosen, rejected",
         [["chosen", PROMPT.format("1?") + "a<|im_end|>"],
          ["rejected", PROMPT.format("1?") + "b\nc<|im_end|>"]]),
        ("dpo", {"query": "1?", "response_j": "a", "response_k": "b"},
         "query -> response_j, response_k",
         [["prompt", PROMPT.format("1?")], ["chosen", "a<|im_end|>"],
          ["rejected", "b<|im_end|>"]]),
        ("sft", {"text": "once"}, "text", [["learnt", "once<|im_end|>"]]),
        ("sft", {"instruction": "Add.", "input": "1", "output": "2"}, "instruction -> output",
         [["read", PROMPT.format("Add.\n\n1")], ["learnt", "2<|im_end|>"]]),
    ],
)  # fmt: skip
def test_each_layout_is_shown_with_its_columns(command, row, columns, parts, shown):
    _, found, text = shown(command, [row])
    assert found["facts"]["columns"] == {columns: 1} and found["examples"][0]["parts"] == parts
    assert columns in text


def test_rows_that_are_left_out_are_counted_with_the_reason(shown):
    pairs = [{"prompt": f"{n}?", "chosen": "a", "rejected": "b"} for n in range(6)]
    pairs[1]["rejected"] = "a"
    pairs[4]["chosen"] = "long " * 40
    _, found, text = shown("dpo", pairs, "--max_length", "100")
    assert (found["rows"], found["facts"]["trained rows"], len(found["lengths"])) == (6, 4, 5)
    assert found["facts"]["evaluation rows"] == 6
    equal, long = found["not_used"][:2]
    assert equal.endswith("1 chosen and rejected are equal (row 2)")
    assert "1 longer than 100 tokens" in long and str(max(found["lengths"])) in long
    assert equal in text
    assert len(found["not_used"]) == 4  # the evaluation's too
    code, said, _ = shown("dpo", pairs, "--max_length", "10")
    assert code == 2 and "max_length 10: all 5 rows of dataset" in said


def test_text_of_the_data_does_not_steer_the_terminal(shown):
    prompt = "1?\x1b[2J\u202e\r\nlearnt | no"
    _, _, text = shown("sft", [{"prompt": prompt, "completion": "\x9b2J\tb"}])
    assert "\t" in text and not any(character in text for character in "\x1b\x9b\u202e\r")
    assert "read   | learnt | no<|im_end|>" in text
