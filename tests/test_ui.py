"""The server of `unslothrl ui`: what it refuses. tests/test_ui_page.py has the page."""

import json
from pathlib import Path

import pytest
from report_runs import HOSTILE, make_run
from starlette.testclient import TestClient
from ui_server import Server

from unslothrl.errors import UserError
from unslothrl.tracking.report.page import write_report
from unslothrl.ui.guard import Guard, key_of
from unslothrl.ui.processes import flags
from unslothrl.ui.server import Site

TOKEN, HOST = "t0ken-of-a-test", "127.0.0.1:8642"
ORIGIN = f"http://{HOST}"
OWN = {"X-Token": TOKEN, "Origin": ORIGIN}  # of the page's requests
GETS = ("/", "/choices", "/runs", "/run?name=mine", "/report?name=mine", "/nothing")
POSTS = ("/plan", "/start", "/stop", "/resume", "/export", "/ask")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of runs: one that has finished."""
    run = make_run(tmp_path / "runs" / "mine", 2, prompts=2)
    run.write_summary({"status": "finished"})
    write_report(run)
    return tmp_path / "runs"


@pytest.fixture
def site(folder) -> Site:
    return Site(folder, TOKEN)


@pytest.fixture
def client(site) -> TestClient:
    return TestClient(Guard(site.app, TOKEN, (HOST, "localhost:8642")), base_url=ORIGIN)


def test_nothing_is_answered_without_the_token(client, site):
    cookies = [{"Cookie": f"{name}={TOKEN}"} for name in ("token", "X-Token")]
    tokens = [{"X-Token": value} for value in ("wrong", "é".encode(), "", TOKEN[:-1])]
    for headers in ({}, *tokens, *cookies, {"Authorization": f"Bearer {TOKEN}"}):
        answers = [client.get(path, headers=headers) for path in GETS]
        answers += [
            client.post(path, json={"name": "mine"}, headers={**headers, "Origin": ORIGIN})
            for path in POSTS
        ]
        assert {answer.status_code for answer in answers} == {403}
        assert not any("mine" in answer.text for answer in answers)
    elsewhere = ("/runs", "/choices", "/report", "/run")  # it opens the page alone there
    assert {client.get(f"{path}?token={TOKEN}").status_code for path in elsewhere} == {403}
    assert client.post(f"/start?token={TOKEN}", json={}, headers={"Origin": ORIGIN}).is_error
    assert client.get(f"/?token={TOKEN}x").status_code == 403
    assert client.get(f"/?token={TOKEN}").status_code == 200 and not site.started
    assert client.get("/runs", headers={"X-Token": TOKEN}).json()[0]["name"] == "mine"


def test_another_host_is_refused(client):
    for host in ("evil.example:8642", "127.0.0.1", "127.0.0.1:80", "localhost", "", HOST + "."):
        assert client.get(f"/?token={TOKEN}", headers={"Host": host}).status_code == 403
    assert client.get(f"/?token={TOKEN}", headers={"Host": "localhost:8642"}).status_code == 200
    twice = [("Host", HOST), ("Host", "evil.example"), ("X-Token", TOKEN)]
    assert client.get("/runs", headers=twice).status_code == 403


def test_another_origin_changes_nothing(client, site):
    others = (
        "null",
        "http://evil.example",
        "http://localhost:8642",
        "https://" + HOST,
        ORIGIN + "/",
    )
    for origin in others:  # the second to last is another origin than the Host's
        for path in POSTS:
            answer = client.post(path, json={"name": "mine"}, headers={**OWN, "Origin": origin})
            assert answer.status_code == 403, (origin, path)
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert client.request(method, "/start", headers={"X-Token": TOKEN}).status_code == 403
    assert client.get("/start", headers=OWN).status_code == 405 and not site.started
    answer = client.get("/runs", headers={**OWN, "Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_reports_key_opens_that_report_alone(client):
    key = key_of(TOKEN, "mine")
    assert client.get("/run?name=mine", headers=OWN).json()["key"] == key
    answer = client.get(f"/report?name=mine&key={key}")
    assert "<title>mine" in answer.text
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert policy[:2] == ["sandbox allow-scripts", "default-src 'none'"]
    refused = (f"name=other&key={key}", f"name=mine&key={TOKEN}", "name=mine", f"key={key}")
    assert {client.get(f"/report?{query}").status_code for query in refused} == {403}
    assert client.get("/runs", headers={"X-Token": key}).status_code == 403


TRICKS = (
    "..", ".", "", "../runs/mine", "mine/", "./mine", "mine/../mine", "/etc", "mine\0", "\0",
    "%2e%2e", "linked", "elsewhere", "~", "mine/adapters", "C:\\", "a" * 10_000,
    "\N{FULLWIDTH FULL STOP}" * 2,
)  # fmt: skip


@pytest.mark.parametrize("name", TRICKS, ids=lambda name: repr(name[:20]))
def test_a_name_that_is_no_run_in_the_folder_is_refused(client, folder, name, tmp_path):
    for link in ("linked", "elsewhere"):
        make_run(tmp_path / "secret-run" / link, 1, prompts=2)
        (folder / link).symlink_to(tmp_path / "secret-run" / link)
    before = sorted(folder.rglob("*"))
    query = {"name": name, "key": key_of(TOKEN, name)}
    answers = [client.get(path, params=query, headers=OWN) for path in ("/run", "/report")]
    for path, more in (("resume", {}), ("export", {"to": "merged"}), ("ask", {"turns": {}})):
        answers.append(client.post(f"/{path}", json={"name": name, **more}, headers=OWN))
    assert {answer.status_code for answer in answers} == {400}
    assert all("there is no run" in answer.json()["error"] for answer in answers)
    client.post("/stop", json={"name": name}, headers=OWN)
    assert [run["name"] for run in client.get("/runs", headers=OWN).json()] == ["mine"]
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("to", ["../../../away", "/tmp/away", "merged/../../x", "--push=a/b"])
def test_an_export_is_written_into_the_runs_folder(client, folder, to):
    (folder / "mine" / "adapters" / "v000002").mkdir(parents=True)
    answer = client.post("/export", json={"name": "mine", "to": to}, headers=OWN)
    said = answer.json()["error"]
    assert answer.status_code == 400 and ("--to" in said or "leads out of mine" in said)


@pytest.mark.parametrize("name", ["adapters", "exports"])
def test_folders_of_a_run_that_are_links_are_not_used(client, folder, name, tmp_path):
    for each in ("adapters/v000002", "exports"):
        (folder / "mine" / each).mkdir(parents=True)
    (folder / "mine" / name).rename(tmp_path / "away")
    (folder / "mine" / name).symlink_to(tmp_path / "away")
    answer = client.post("/export", json={"name": "mine", "to": "adapter"}, headers=OWN)
    assert "leads out of mine" in answer.json()["error"]


def test_files_that_lead_out_of_a_run_are_not_shown(client, folder, tmp_path):
    (tmp_path / "secret").write_text("a secret")
    for name in ("report.html", "config.toml", "error.txt"):
        (folder / "mine" / name).unlink(missing_ok=True)
        (folder / "mine" / name).symlink_to(tmp_path / "secret")
    shown = client.get("/run?name=mine", headers=OWN)
    assert "a secret" not in shown.text and not shown.json()["has_report"]
    report = client.get(f"/report?name=mine&key={key_of(TOKEN, 'mine')}")
    assert report.status_code == 400 and "a secret" not in report.text


def test_what_runs_say_is_json_in_ascii(client, folder):
    """So that no browser takes it for a page, whatever it is."""
    hostile = make_run(folder / "<img src=x onerror=alert(1)>", 1, prompts=2)
    hostile.write_summary({"status": HOSTILE, "adapter": HOSTILE, "error": HOSTILE})
    for path in ("/runs", f"/run?name={hostile.path.name}"):
        answer = client.get(path, headers=OWN)
        assert answer.status_code == 200 and answer.content.isascii()
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "onerror" not in client.get(f"/?token={TOKEN}").text


def test_a_run_says_which_code_its_options_name(client, folder):
    options = 'reward = ["mine.py:f", "boxed"]\nenvironment_python = "/away/python"\nlr = 1e-4\n'
    (folder / "mine" / "config.toml").write_text(options)
    code = client.get("/run?name=mine", headers=OWN).json()["code"]
    assert code == ["reward ['mine.py:f', 'boxed']", "environment_python /away/python"]


DAMAGE = {"summary.json": "[", "metrics.jsonl": '{"step": []}\n' * 3, "config.toml": "lr = \xff["}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_listed_and_says_so(client, folder, name):
    (folder / "mine" / name).write_text(DAMAGE[name], encoding="latin-1")
    assert client.get("/runs", headers=OWN).json()[0]["name"] == "mine"
    shown = client.get("/run?name=mine", headers=OWN)
    assert shown.status_code == 200 and "damaged" in shown.json()["error"]


def test_options_are_those_of_the_command_and_never_other_flags():
    given = {"lr": ["1e-4"], "objective.kl": ["loss"], "reward": ["a", "b"], "run_name": ["--x"]}
    assert flags("train", given) == [
        "--lr=1e-4", "--objective.kl=loss", "--reward=a", "--reward=b", "--run_name=--x",
    ]  # fmt: skip
    for value, flag in (("True", "--shuffle_rewards"), ("false", "--no_shuffle_rewards"),
                        ("", "--shuffle_rewards")):  # fmt: skip
        assert flags("train", {"shuffle_rewards": [value]}) == [flag]
    for value in ("yes", "1", "on"):  # never taken for false without a word
        with pytest.raises(UserError, match="shuffle_rewards must be true or false"):
            flags("train", {"shuffle_rewards": [value]})


@pytest.mark.parametrize("name", ["help", "lr=1 --x", "", "output_dir", "resume", "-lr", "not_one"])
def test_other_options_are_refused(client, site, name):
    answer = client.post("/start", json={"options": {name: ["x"]}}, headers=OWN)
    assert answer.status_code == 400 and answer.json()["error"] and not site.started


def shown(client: TestClient, name: str) -> dict:
    """A run, when its process has ended."""
    while (found := client.get(f"/run?name={name}", headers=OWN).json())["status"] == "starting":
        pass
    return found


@pytest.mark.real
def test_a_run_that_is_refused_says_why(client, site, folder):
    options = {"lr": ["-1"], "run_name": ["new"]}
    assert client.post("/start", json={"options": options}, headers=OWN).json() == {"name": "new"}
    found = shown(client, "new")
    assert found["status"] == "failed" and found["error"].startswith("lr must be ")
    assert client.get("/runs", headers=OWN).json()[0] == {"name": "new", "status": "failed"}
    client.post("/resume", json={"name": "mine", "max_steps": "x"}, headers=OWN)
    site.started["mine"].process.wait()
    found = shown(client, "mine")
    assert found["status"] == "finished" and "max_steps must be" in found["error"]
    assert sorted(path.name for path in folder.iterdir()) == ["mine"]


@pytest.mark.real
def test_a_run_that_is_stopped_before_it_begins_is_no_failure(client, site):
    client.post("/start", json={"options": {"run_name": ["new"]}}, headers=OWN)
    client.post("/stop", json={"name": "new"}, headers=OWN)
    found = shown(client, "new")
    assert (found["status"], found["error"]) == ("stopped before it began", "")


@pytest.mark.real
def test_a_question_that_cannot_be_answered_says_why(client, folder):
    (folder / "mine" / "adapters" / "v000002").mkdir(parents=True)
    asked = {"name": "mine", "turns": {"adapter": [["user", "x"]]}}
    for _ in range(2):
        answer = client.post("/ask", json=asked, headers=OWN)
        (line,) = map(json.loads, answer.text.splitlines())
        assert line["done"] and "v000002" in line["error"] and "adapter_config" in line["error"]


@pytest.mark.real
def test_the_token_is_long_and_in_no_log(tmp_path):
    """The server itself; it listens on this host's own address alone."""
    with Server(tmp_path) as server:
        assert len(server.token) >= 43  # 32 bytes
        import httpx

        host = server.url.partition("/?")[0]
        headers = {"X-Token": server.token, "Origin": host}
        assert httpx.get(f"{host}/run", headers=headers).status_code == 500  # a traceback
        assert httpx.get(f"{host}/?token={server.token}").status_code == 200
        assert httpx.get(f"{host}/?token=x{server.token}").status_code == 403
        said = server.stop()
    assert "Traceback" in said and server.token not in said
