"""`unslothrl eval --suite`: what lm-eval is asked, how its records are read, a small run."""

import json
import os
from pathlib import Path

import pytest

from unslothrl import embedded
from unslothrl.commands import cli, suites
from unslothrl.embedded import task as arithmetic

SUMS = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{problem}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], do_sample: false, max_gen_toks: 64}
filter_list:
  - name: last-number
    filter:
      - {function: regex, regex_pattern: '(-?\\d+)', group_select: -1}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
"""


def write_rows(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_tasks_with_a_folder_of_their_own_read_its_files(tmp_path):
    own, folder = tmp_path / "own", tmp_path / "made"
    folder.mkdir()
    write_rows(own / "x", [])
    (own / "minerva_math500").mkdir()
    flags = {"eval_problems": 8, "max_new_tokens": 1024}
    asked = suites.settings("gsm8k,math500", str(own), flags, folder)
    assert asked["tasks"] == ["gsm8k", str(folder / "local.yaml")]
    assert (asked["limit"], asked["gen_kwargs"]) == (8, {"max_gen_toks": 1024})
    assert json.loads((folder / "local.yaml").read_text())["task"] == [
        {"task": "minerva_math500", "dataset_path": str(own / "minerva_math500"),
         "dataset_name": None}
    ]  # fmt: skip
    plain = suites.settings("ifeval", None, {}, folder)
    assert plain["tasks"] == ["ifeval"]
    unset = ("limit", "gen_kwargs", "include_path", "system_instruction")
    assert not any(plain[name] for name in unset)  # the task's own


def test_the_table_pairs_problems_and_names_task_version_and_shots():
    def of(mean: float, *values: float) -> dict:
        figures = {"alias": "t", "acc,none": mean, "acc_stderr,none": 0.25}
        more = {"versions": {"t": 3.0}, "n-shot": {"t": 5}, "n-samples": {"t": {"effective": 4}}}
        results = {"t": figures, "group": {"acc,none": mean, "acc_stderr,none": "N/A"}}
        return {
            "results": results,
            "lm_eval_version": "1",
            "values": {"t acc,none": values},
            **more,
        }

    first, _, row, group = suites.table(
        {"base": of(0.25, 0, 0, 0, 1), "adapter": of(0.5, 0, 0, 1, 1)}
    )
    assert first.startswith("lm-eval 1;") and row.startswith("t v3.0, 5-shot, 4 problems  acc,none")
    assert group.startswith("group  ") and "0.2500 ± 0.2500  0.5000 ± 0.2500  +0.250" in row
    assert group.endswith("0.2500 ± N/A     0.5000 ± N/A")


def test_options_that_a_suite_has_itself_are_refused(capsys):
    assert cli.main(["eval", str(embedded.TURNS), "--suite", "gsm8k", "--n", "4"]) == 2
    assert "n is not for --suite" in capsys.readouterr().err


@pytest.mark.slow
def test_a_suite_of_the_base_and_an_adapter(tmp_path, capsys, monkeypatch):
    """A task of one's own, and lm-eval's GSM8K over rows from a file; the server leaves nothing."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    if kept := os.environ.get("UNSLOTHRL_SUITES"):  # where tests keep such environments
        monkeypatch.setenv("XDG_CACHE_HOME", kept)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    problems, own = arithmetic.problems("test", 0), tmp_path / "own"
    rows = [next(problems) for _ in range(16)]
    write_rows(own / "rows" / "sums.jsonl", rows)
    (own / "sums.yaml").write_text(SUMS.replace("FILE", str(own / "rows" / "sums.jsonl")))
    words = [{"question": row["problem"], "answer": f"#### {row['answer']}"} for row in rows]
    for split in ("train", "test"):
        write_rows(own / "gsm8k" / f"{split}.jsonl", words)
    command = ["eval", str(embedded.TURNS), "--suite", "sums,gsm8k", "--suite_folder", str(own)]
    assert (
        cli.main([*command, "--eval_problems", "16", "--output", str(tmp_path / "out"), "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)["suites"]
    score = {
        name: each["results"]["sums"]["exact_match,last-number"] for name, each in found.items()
    }
    assert score["base"] >= 0.25 and score["adapter"] != score["base"]
    assert found["base"]["configs"]["gsm8k"]["num_fewshot"] == 5
    assert len(found["adapter"]["values"]["gsm8k exact_match,strict-match"]) == 16
    of_server = f"--served-model-name\0{suites.BASE}\0".encode()
    running = [
        file.read_bytes()
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if os.access(file, os.R_OK)
    ]
    assert not any(of_server in line and str(tmp_path).encode() in line for line in running)
