"""Functions as tools: which can be none."""

import pytest
from environment_files import written

from unslothrl.environments.host import Host, Setup
from unslothrl.errors import UserError

pytestmark = pytest.mark.real


DOCUMENTED = '"""\n    A tool.\n\n    Args:\n        a: One.\n        b: Two.\n    """'


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def helper(x): return x", "helper has no schema (Cannot generate JSON schema for helper "
         "because it has no docstring): give it types and a docstring that describes each "
         "argument, or, if it is no tool, a name that begins with _"),
        (f"def g(a, b: int):\n    {DOCUMENTED}", "g has no schema (Argument a is missing a type"),
        (f"def g(a: 'Nothing', b: int):\n    {DOCUMENTED}", "g has no schema (name 'Nothing'"),
    ],
)  # fmt: skip
def test_what_is_no_tool_is_refused_in_a_line(source, why, tmp_path):
    host = Host(Setup(tools=(written(tmp_path, source),)))
    with pytest.raises(UserError) as refused:
        host.start()
    said = str(refused.value)
    assert f"the tool {why}" in said and "\n" not in said and "chat_template" not in said
