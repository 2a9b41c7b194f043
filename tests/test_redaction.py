"""Secrets are taken out of text, of what a run prints and keeps, and nothing else is."""

import io
import json
import tomllib
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from unslothrl import text
from unslothrl.cluster import causes
from unslothrl.commands import cli
from unslothrl.config.options import Config
from unslothrl.config.toml_files import read_toml, to_toml
from unslothrl.config.values import RUN
from unslothrl.errors import UserError
from unslothrl.runs import resume
from unslothrl.runs.resolve import over_resumed
from unslothrl.text import HIDDEN, is_secret_name, redacted
from unslothrl.tracking import origin
from unslothrl.tracking.origin import Origin
from unslothrl.tracking.run_folder import ERROR, RunFolder
from unslothrl.tracking.terminal import Terminal

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
WORD = st.text(LETTERS, min_size=20, max_size=40)
SECRETS = st.one_of(
    WORD.map("hf_{}".format),
    WORD.map("sk-proj-{}".format),
    st.from_regex(r"\AAKIA[A-Z0-9]{16}\Z"),
    st.from_regex(r"\A[0-9a-f]{40}\Z"),
)
PLACES = st.sampled_from(
    [
        "https://me:{}@host.example/path",
        "s3://key:{}@bucket/path",
        "https://{}@host.example/path",
        "https://host.example/p?a=1&access_token={}&b=2",
        "WANDB_API_KEY={}",
        "export RAY_AUTH_TOKEN='{}'",
        '{{"client_secret": "{}", "x": 1}}',
        "aws_secret_access_key = {}",
        "--hub_token {}",
        "https://me:a/{}@host.example/path",
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    ]
)
PLANTED = (st.tuples(SECRETS, st.just("{}")) | st.tuples(WORD, PLACES)).map(
    lambda each: (each[0], each[1].format(each[0]))
)  # what is secret, how a text has it
AROUND = st.text(st.sampled_from(" \n\t,;()[]{}\"'<>/|"), max_size=3)


@given(PLANTED, AROUND, AROUND)
def test_a_secret_does_not_survive_whatever_stands_around_it(planted, before, after):
    secret, text = planted
    hidden = redacted(f"{before} {text} {after}", guess=True)
    assert secret not in hidden and HIDDEN in hidden
    assert redacted(hidden, guess=True) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "https://host.example/p?pass=SECRETVALUE",
        "https://host.example/p?a=1&pwd=SECRETVALUE&b=2",
        "https://host.example/p?a=1;token=SECRETVALUE;b=2",
        r'{"url": "https:\/\/me:SECRETVALUE@host.example\/p"}',
        "//me:SECRETVALUE@host.example/p",
        "https://hooks.slack.com/services/T000/B000/SECRETVALUE",
        "nvapi-SECRETVALUE0123456789",
    ],
)
def test_what_services_and_urls_carry_is_hidden_in_options_too(text):
    hidden = redacted(text)
    assert "SECRETVALUE" not in hidden and HIDDEN in hidden and redacted(hidden) == hidden


@pytest.mark.parametrize("scheme", ["Basic", "Bearer", "bearer", "token"])
def test_a_header_of_letters_alone_is_hidden_with_its_scheme(scheme):
    said = redacted(f"sent Authorization: {scheme} QWxhZGRpbjpvcGVu to it", guess=True)
    assert said == f"sent Authorization: {HIDDEN} to it"


VALUE = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=6, max_size=20
)


@given(VALUE, st.sampled_from([str, json.dumps, repr, lambda text: json.dumps([text], indent=1)]))
def test_the_value_of_a_secret_variable_is_hidden_however_it_is_written(value, write):
    text = f"before {write(value)} after"
    with mock.patch.dict("os.environ", {"MY_SERVICE_TOKEN": value}, clear=True):
        assert value not in redacted(text).replace(HIDDEN, "")
        assert HIDDEN in redacted(text)


def test_a_password_of_a_variables_url_is_hidden_as_it_is_typed_too(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:p%40ss%2fword@proxy:3128")
    for typed in ("p@ss/word", "p%40ss%2Fword", "p%40ss%2fword"):
        assert redacted(f"refused: {typed}!") == f"refused: {HIDDEN}!"


@pytest.mark.parametrize(
    ("options", "password"),
    [
        ("-u me:{}", "SECRET"),
        ("--user=me:{}", "SECRET"),
        ("-sS -X POST https://x.example -u 'me:{}'", "SECRET of words"),
        ('-u "me:{}"', "SECRET of words"),
    ],
)
def test_a_password_of_curl_is_hidden(options, password):
    said = redacted(f"curl {options.format(password)} https://host.example", guess=True)
    assert said == f"curl {options.format(HIDDEN)} https://host.example"


@pytest.mark.parametrize(
    "text",
    [
        "max_new_tokens = 512",
        "curl -sSL https://host.example:8080/a -o a.tar && tar -u a:b",
        '{"tokens_per_s": 812.5, "rollout/tokens": 3}',
        'aggregation = "token"',
        "ssh://git@github.com/me/repo",
        "http://127.0.0.1:8265/path",
        "models--x/snapshots/" + "0a" * 20 + "/config.json",
        "task-0001 risk-free desk-top",
        "eos_token_id: 3",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted(text, guess=True) == text


def test_only_names_of_secrets_are_secret():
    secret = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "db-password", "DB_PWD", "API_KEYS",
              "OPENAI_API_KEY_2", "GITHUB_PAT", "SLACK_WEBHOOK_URL")  # fmt: skip
    others = ("RAY_AUTH_MODE", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "PWD", "OLDPWD", "MONKEY",
              "AWS_WEB_IDENTITY_TOKEN_FILE", "KEYBOARD", "COMPASS", "XPC_SERVICE_NAME")  # fmt: skip
    assert all(map(is_secret_name, secret)) and not any(map(is_secret_name, others))


def test_a_long_text_is_read_in_proportion_to_its_length():
    """Patterns that look ahead from every place would take minutes."""
    for part in ("a-", "token", "https://", "eyJaaaaaaaa", '"', "-----BEGIN ", "?key"):
        assert redacted(part * (10_000 // len(part)), guess=True)


SECRET = "hf_" + "a1B2" * 8
WITH_PASSWORD = "https://me:pass-word@host.example/rows.jsonl"
SHOWN = f"https://{HIDDEN}@host.example/rows.jsonl"


def test_a_run_keeps_no_secret_in_its_options_or_its_command(tmp_path, monkeypatch):
    command = ["unslothrl", "--dataset", WITH_PASSWORD, "--system_prompt", f"use {SECRET}"]
    monkeypatch.setattr("sys.argv", command)
    config = Config(dataset=WITH_PASSWORD, system_prompt=f"use {SECRET}")
    origin.record(tmp_path, recipe=resume.recipe_of(RUN, {"dataset": WITH_PASSWORD}))
    origin.record_resume(tmp_path, 0, [f"dataset a -> {WITH_PASSWORD}"], {})
    options = to_toml(config, [f"read from {WITH_PASSWORD}"])
    RunFolder(tmp_path).add_note(1, f"reward mine failed: 401 from {WITH_PASSWORD}, {SECRET}")
    notes = (tmp_path / "notes.jsonl").read_text()
    for kept in (options, (tmp_path / origin.ORIGIN).read_text(), notes):
        assert "pass-word" not in kept and SECRET not in kept
        assert "host.example/rows.jsonl" in kept
    assert tomllib.loads(options)["system_prompt"] == f"use {HIDDEN}"


def test_a_run_file_of_an_older_version_is_read_without_its_secrets(tmp_path):
    text = json.dumps({"command": f"unslothrl --dataset {WITH_PASSWORD}", "started": "now"})
    (tmp_path / origin.ORIGIN).write_text(text)
    assert origin.read(tmp_path) == Origin(f"unslothrl --dataset {SHOWN}", "now")


def test_a_run_is_resumed_with_the_secret_given_again(tmp_path):
    """The folder lacks it: without it the run would read something else."""
    config = replace(Config(), dataset=WITH_PASSWORD)
    (tmp_path / "config.toml").write_text(to_toml(config))
    with pytest.raises(UserError, match=r"^dataset https://<hidden>@host.* set --dataset again$"):
        over_resumed(RUN, {"resume": str(tmp_path)}, {}, [])
    user = {"resume": str(tmp_path), "dataset": WITH_PASSWORD}
    assert over_resumed(RUN, user, user, [])["dataset"] == WITH_PASSWORD
    before = read_toml(tmp_path / "config.toml")
    assert resume.changed(before, config, RUN) == []  # the same, as far as is known
    other = replace(config, dataset="https://me:pass-word@host.example/others.jsonl")
    assert resume.changed(before, other, RUN) == [
        f"dataset {SHOWN} -> https://{HIDDEN}@host.example/others.jsonl"
    ]


def test_the_options_of_an_environment_keep_no_secret():
    given = ("api_key=abc123def", "env_id=a=b", "max_tokens=5")
    assert text.redacted_values(given) == ("api_key=<hidden>", "env_id=a=b", "max_tokens=5")


@pytest.mark.parametrize("live", [False, True])
def test_whatever_a_run_prints_is_without_secrets(live, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_PASSWORD", "correct horse")
    out = io.StringIO()
    console = Console(file=out, force_terminal=live, width=200, highlight=False)
    said = f"{WITH_PASSWORD} {SECRET} correct horse"
    with Terminal(console=console, live=live) as view:
        view.header([said, said])
        view.stage(f"reading {said}")
        view.progress(f"reading {said}", 1, 2)
        if view.live is not None:
            view.live.refresh()
        view.note(said)
        view.failed(said, [("resume", said)])
    printed = out.getvalue()
    assert not any(secret in printed for secret in ("pass-word", SECRET, "correct horse"))
    assert printed.count(HIDDEN) >= 15


def test_a_traceback_is_without_the_secrets_of_the_shell_that_it_came_from(tmp_path, monkeypatch):
    """Who makes an archive of it later may not have the variable any more."""
    monkeypatch.setenv("MY_SERVICE_PASSWORD", "correct horse")
    try:
        raise OSError(f"{WITH_PASSWORD}: Authorization: Basic QWxhZGRpbg said correct horse")
    except OSError as error:
        summary = causes.summary_of(error)
        RunFolder(tmp_path).write_error(error)
    monkeypatch.delenv("MY_SERVICE_PASSWORD")
    said = f"OSError: {SHOWN}: Authorization: {HIDDEN} said {HIDDEN}"
    assert said in summary and said in (tmp_path / ERROR).read_text()


def test_what_nobody_foresaw_ends_with_a_short_cause(monkeypatch, capsys):
    def fails(arguments):
        raise KeyError(f"\x1b[2J {WITH_PASSWORD} token={SECRET}")

    monkeypatch.setattr(cli, "answer", fails)
    assert cli.main([]) == cli.FAILED
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):\n")
    last = said.splitlines()[-1]
    assert last.startswith("unslothrl: internal error, KeyError: ") and "test_redaction.py" in last
    assert "pass-word" not in said and SECRET not in said and "\x1b" not in said
