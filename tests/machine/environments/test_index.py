"""The versions that the package index has, as pip tells them; uv is a stand-in that runs no pip."""

import pytest

from tests.machine.environments.installer import Fake
from vllama.base.errors import EnvironmentFailed
from vllama.lab.engine_versions import list_versions


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path)


def test_versions_come_oldest_first(fake):
    assert list_versions("paint", fake.environ) == ["1.0", "1.1", "1.2", "1.3", "1.4"]
    (call,) = fake.calls
    assert call["args"][:2] == ["tool", "run"] and "--only-binary=:all:" in call["args"]


def test_what_is_compiled_may_come_as_source(fake):
    list_versions("paint", fake.environ, compiled=True)
    assert "--only-binary=:all:" not in fake.calls[0]["args"]


def test_a_mirror_that_is_named_to_uv_is_named_to_pip(fake):
    list_versions("paint", fake.environ | {"UV_DEFAULT_INDEX": "http://127.0.0.1:1/"})
    args = fake.calls[0]["args"]
    assert args[args.index("--index-url") + 1] == "http://127.0.0.1:1/"


def test_an_index_that_does_not_have_it(fake):
    with pytest.raises(EnvironmentFailed, match="cannot list the versions of 'nowhere'") as caught:
        list_versions("nowhere", fake.environ)
    assert "--versions" in caught.value.hint
