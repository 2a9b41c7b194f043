"""What is checked of a mirror before a run begins, and its address."""

import shutil
import threading
from dataclasses import replace

import pytest
from test_mirror import made, run, watched  # noqa: F401

from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.mirror import address, mirror
from unslothrl.mirror.sending import Sender
from unslothrl.mirror.target import opened
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import RunFolder


def config_of(folder: RunFolder, place: object) -> Config:
    return Config(mirror=str(place), output_dir=str(folder.path.parent), run_name=folder.path.name)


def test_a_target_is_tried_before_anything_is_started(run, tmp_path):  # noqa: F811
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"mirror .*/file/below cannot be written \(NotADirectory"):
        mirror.of_run(config_of(run, tmp_path / "file" / "below"))
    assert mirror.of_run(Config()) is None
    there = tmp_path / "there"
    assert mirror.of_run(config_of(run, there)).url == f"{there}/one"
    assert list(there.iterdir()) == []


def test_a_target_that_does_not_answer_is_refused(run, tmp_path, monkeypatch):  # noqa: F811
    from unslothrl.mirror import target

    monkeypatch.setattr(target, "START_S", 0.02)
    never = threading.Event()
    with pytest.raises(UserError, match=r"cannot be read \(TimeoutError: no answer within 0 s\)"):
        target.asked("mirror", "s3://b", "read", lambda: never.wait(20))
    never.set()


def test_a_package_that_is_missing_is_named(run, monkeypatch):  # noqa: F811
    import fsspec

    def missing(name):
        raise ImportError(f"Install {name}fs")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    monkeypatch.setattr(fsspec, "__version__", "2026.2.0")
    for url, package in (("s3://b/x", "s3fs==2026.2.0"), ("gs://b", "gcsfs==2026.2.0"),
                         ("sftp://h/x", "paramiko"), ("abfs://b", "adlfs")):  # fmt: skip
        with pytest.raises(UserError, match=rf"its package is not .* -m pip install {package}`"):
            opened("mirror", url)
    monkeypatch.undo()
    with pytest.raises(UserError, match="there is no file system nonsense"):
        opened("mirror", "nonsense://x")


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
    with pytest.raises(UserError, match=r"is at step 3, and .* at step 2: continue the former"):
        mirror.of_run(config_of(run, tmp_path / "there"))


@pytest.mark.parametrize("place", ["runs", "runs/one", "runs/one/below", "file://runs"])
def test_a_run_is_not_copied_into_itself(run, tmp_path, place):  # noqa: F811
    where = place.replace("file://", f"file://{tmp_path}/")
    where = where if "://" in where else str(tmp_path / where)
    with pytest.raises(UserError, match="is there itself: set --mirror to another folder"):
        mirror.of_run(config_of(run, where))


SECRETS = [  # URL, what of it may be shown
    ("sftp://me:s3cret@host/x", "sftp://host/x"),
    ("sftp://me:s3/cret@host:22/x", "sftp://host:22/x"),
    ("s3://s3cret@bucket/x", "s3://bucket/x"),
    ("hf://s3cret@datasets/me/x", "hf://datasets/me/x"),
    ("az://box/x?sig=s3cret", "az://box/x"),
    ("https://host/x#s3cret", "https://host/x"),
]


@pytest.mark.parametrize(("url", "shown"), SECRETS)
def test_a_url_with_a_password_is_refused_without_showing_it(url, shown):
    with pytest.raises(UserError, match="come from the environment") as caught:
        address.canonical("mirror", url)
    assert str(caught.value).startswith(f"mirror {shown}: ") and "cret" not in str(caught.value)
    assert address.said(OSError(f"{url} is away")) == f"OSError: {shown} is away"


@pytest.mark.parametrize("url", ["sftp://me@host:22/x", "s3://bucket/a@b", "hf://datasets/me/x@v1",
                                 "sftp://host:22/a@b", "memory://a?b", "file:///a#b"])  # fmt: skip
def test_a_url_without_one_stays_as_it_is(url):
    assert address.canonical("mirror", url + "/") == url == address.without_credentials(url)


def test_one_file_system_inside_another_is_refused():
    with pytest.raises(UserError, match="one file system inside another"):
        address.canonical("mirror", "simplecache::s3://bucket")
