"""A run fetched from a mirror, whoever wrote what lies there."""

from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from stopped_run import MACHINE as CPU
from test_mirror import add_step, made, make_run, run, tree, watched  # noqa: F401

from unslothrl.config.toml_files import to_toml
from unslothrl.errors import UserError
from unslothrl.mirror import fetching
from unslothrl.mirror.fetching import Target
from unslothrl.mirror.mirror import Sender
from unslothrl.runs.resolve import resolve
from unslothrl.tracking import origin


def fetch(url: object, output_dir: Path) -> Path:
    return fetching.fetch(str(url), str(output_dir), lambda line: None)


@pytest.fixture
def there(run, tmp_path) -> Path:  # noqa: F811
    Sender(run.path, watched(tmp_path / "there" / "one")).send()
    return tmp_path / "there" / "one"


def test_what_is_fetched_is_what_was_sent(run, there, tmp_path):  # noqa: F811
    (there / "checkpoints" / "step_000003" / "SHA256SUMS").unlink()  # it had not arrived yet
    (there / ".metrics.jsonl.part").write_text("half")
    folder = fetch(f"file://{there}", tmp_path / "new")
    assert folder == tmp_path / "new" / "one"
    kept = {name: value for name, value in tree(run.path).items() if "step_000003/" not in name}
    assert tree(folder) == kept
    target = watched(there)
    target.url = f"file://{there}"
    Sender(folder, target).send()  # it goes on into the same mirror, which has all of that
    assert set(target.fs.written) <= {"latest", "best"}


def test_memory_too(run, tmp_path):  # noqa: F811
    fs = MemoryFileSystem()
    Sender(run.path, Target(fs, "/test-fetching/one", "memory://test-fetching/one")).send()
    assert tree(fetch("memory://test-fetching/one", tmp_path)) == tree(run.path)
    fs.rm("/test-fetching", recursive=True)


def test_a_folder_that_is_there_stays_as_it_is(there, tmp_path):
    (tmp_path / "new" / "one").mkdir(parents=True)
    with pytest.raises(UserError, match="is there already: continue that with --resume"):
        fetch(there, tmp_path / "new")


def test_links_and_code_are_left_out(there, tmp_path):
    (there / "rollouts" / "link").symlink_to("/etc/passwd")
    for name in ("evil.py", "EVIL.PY", "x.so", "adapters/x.pyc"):
        (there / name).parent.mkdir(exist_ok=True)
        (there / name).write_text("raise SystemExit")
    found = tree(fetch(there, tmp_path / "new"))
    assert not [name for name in found if name.lower().endswith(("link", ".py", ".so", ".pyc"))]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a\\b", "x\n", ".hidden"])
def test_names_that_lead_elsewhere_are_left_out(there, run, tmp_path, name, monkeypatch):  # noqa: F811
    """A folder with one more file than there is, of a name of its server's choice."""
    more = {"type": "file", "name": f"{there}/{name}", "size": 1}

    class Named(LocalFileSystem):
        cachable = False

        def find(self, path, **keywords):
            return {**super().find(path, **keywords), more["name"]: more}

    target = Target(Named(), str(there), str(there))
    monkeypatch.setattr(Target, "opened", lambda option, url: target)
    assert tree(fetch(there, tmp_path / "new")) == tree(run.path)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one"]


def test_a_folder_that_is_no_run_is_refused(there, tmp_path):
    (there / "config.toml").unlink()
    with pytest.raises(UserError, match=r"be a run's folder, got .* \(it has no config\.toml"):
        fetch(there, tmp_path / "new")
    assert not (tmp_path / "new").exists() or list((tmp_path / "new").iterdir()) == []


def test_what_a_killed_process_had_fetched_is_removed(there, tmp_path):
    left_over = tmp_path / "new" / ".one.unfinished"
    (left_over / "rollouts").mkdir(parents=True)
    (left_over / "old").write_text("")
    assert "old" not in tree(fetch(there, tmp_path / "new"))
    assert not left_over.exists()


def embedded(**options) -> dict:
    return {"model": "embedded", "dataset": "embedded", "learner": "grpo", **options}


@pytest.fixture
def away(tmp_path) -> Path:
    """A mirror with two runs of a recipe, and one of another."""
    for day, (name, seed) in enumerate([("old", 1), ("new", 1), ("other", 2)], start=1):
        resolved = resolve(embedded(seed=seed), CPU)
        folder = tmp_path / "away" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(to_toml(resolved.config))
        started = f"2026-01-0{day} 00:00"
        origin.write(folder, origin.Origin(started=started, recipe=resolved.recipe))
    return tmp_path / "away"


@pytest.mark.parametrize("kind", ["", "file://"])
def test_auto_looks_into_the_mirror_where_no_run_is_here(away, tmp_path, kind, monkeypatch):
    mirror, output = f"{kind}{away}", str(tmp_path / "here")
    options = embedded(seed=1, mirror=mirror, output_dir=output, resume="auto")
    resolved = resolve(options, CPU, fetches=True)
    assert resolved.config.resume == f"{output}/new" and resolved.config.mirror == mirror
    assert f"resume auto: {mirror}/new" in resolved.notes
    named = {**options, "run_name": "old"}
    assert resolve(named, CPU, fetches=True).config.resume == f"{output}/old"
    monkeypatch.setattr(fetching, "fetch", pytest.fail)
    assert resolve(options, CPU, fetches=True).config.resume == f"{output}/new"  # it is here now
    none = resolve({**options, "seed": 3}, CPU, fetches=True)
    assert none.config.resume is None and none.config.mirror == mirror


def test_a_run_goes_on_into_the_mirror_that_it_came_from(away, tmp_path):
    options = {"resume": f"file://{away}/new/", "output_dir": str(tmp_path)}
    config = resolve(options, CPU, fetches=True).config
    assert (config.mirror, config.run_name) == (f"file://{away}", "new")
    here = {"resume": config.resume, "output_dir": str(tmp_path)}
    (tmp_path / "new" / "config.toml").write_text(to_toml(config))
    assert resolve(here, CPU).config.mirror == f"file://{away}"
    assert resolve({**here, "mirror": "none"}, CPU).config.mirror is None


@pytest.mark.parametrize("option", ["resume", "mirror"])
def test_a_password_reaches_neither_config_nor_message(option):
    ssh = ("sftp://me:s3cret@host/x", "sftp://me:s3/cret@host:22/x")
    for url in (*ssh, "s3://s3cret@bucket/x", "az://box/x?sig=s3cret"):
        with pytest.raises(UserError, match="come from the environment") as caught:
            resolve(embedded(**{option: url}), CPU, fetches=True)
        assert "cret" not in str(caught.value)


def test_a_relative_mirror_is_kept_in_full(tmp_path, here):
    assert resolve(embedded(mirror="copies"), CPU).config.mirror == str(tmp_path / "copies")
