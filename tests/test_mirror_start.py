"""What is checked of a mirror before a run begins, and its address."""

import shutil
from dataclasses import replace

import pytest
from test_mirror import made, run, watched  # noqa: F401

from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.mirror import fetching, mirror
from unslothrl.mirror.fetching import Target
from unslothrl.mirror.mirror import Sender
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import RunFolder


def config_of(folder: RunFolder, place: object) -> Config:
    return Config(mirror=str(place), output_dir=str(folder.path.parent), run_name=folder.path.name)


def test_a_target_is_tried_before_anything_is_started(run, tmp_path):  # noqa: F811
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"mirror .*/file/below cannot be reached \(NotADirectory"):
        mirror.of_run(config_of(run, tmp_path / "file" / "below"))
    assert mirror.of_run(Config()) is None
    there = tmp_path / "there"
    assert mirror.of_run(config_of(run, there)).url == f"{there}/one"
    assert list(there.iterdir()) == []


def test_a_package_that_is_missing_is_named():
    with pytest.raises(UserError, match="s3fs"):
        Target.opened("mirror", "s3://b/x")
    with pytest.raises(UserError, match="nonsense"):
        Target.opened("mirror", "nonsense://x")


def test_another_run_of_this_name_is_not_overwritten(run, tmp_path):  # noqa: F811
    other = RunFolder(shutil.copytree(run.path, tmp_path / "other" / "one"))
    Sender(run.path, watched(tmp_path / "there" / "one")).send()
    origin.write(other.path, replace(origin.read(other.path), started="2020-01-01 00:00"))
    with pytest.raises(UserError, match="holds another run: set another --run_name, or continue"):
        mirror.of_run(config_of(other, tmp_path / "there"))
    assert mirror.of_run(config_of(run, tmp_path / "there")).url == f"{tmp_path}/there/one"


def test_a_mirror_that_is_further_is_not_overwritten(run, tmp_path):  # noqa: F811
    Sender(run.path, watched(tmp_path / "there" / "one")).send()
    run.truncate_after(2)
    with pytest.raises(UserError, match=r"is at step_000003, and .* at step_000002: continue"):
        mirror.of_run(config_of(run, tmp_path / "there"))


@pytest.mark.parametrize(
    "place", ["runs", "runs/one", "runs/one/below", "file://runs", "..", "/", "runs/two"]
)
def test_a_run_is_not_copied_into_itself_or_another(run, tmp_path, place, monkeypatch):  # noqa: F811
    monkeypatch.chdir(run.path.parent)
    (run.path.parent / "two").mkdir()
    (run.path.parent / "two" / "config.toml").write_text("")
    where = place.replace("file://", f"file://{tmp_path}/")
    where = where if "://" in where or place in ("..", "/") else str(tmp_path / where)
    with pytest.raises(UserError, match="set --mirror to another folder"):
        mirror.of_run(config_of(run, where))


@pytest.mark.parametrize("url", ["sftp://me:s3cret@host/x", "sftp://me:s3/cret@host:22/x",
                                 "s3://s3cret@bucket/x", "hf://s3cret@datasets/me/x",
                                 "az://box/x?sig=s3cret", "https://host/x#s3cret"])  # fmt: skip
def test_a_url_with_a_password_is_refused_without_showing_it(url):
    with pytest.raises(UserError, match="come from the environment") as caught:
        fetching.canonical("mirror", url)
    assert "cret" not in str(caught.value)


def test_an_error_of_a_library_shows_no_password():
    said = fetching.said(OSError("https://me:s3cret@host/x?token=s3cret is away"))
    assert said.startswith("OSError: https://") and "s3cret" not in said


@pytest.mark.parametrize("url", ["sftp://me@host:22/x", "s3://bucket/a@b", "hf://datasets/me/x@v1",
                                 "sftp://host:22/a@b", "memory://a?b", "file:///a#b"])  # fmt: skip
def test_a_url_without_one_stays_as_it_is(url):
    assert fetching.canonical("mirror", url + "/") == url


def test_one_file_system_inside_another_is_refused():
    with pytest.raises(UserError, match="a URL such as"):
        fetching.canonical("mirror", "simplecache::s3://bucket")
