"""tests/private_interfaces.json against the package's code and against the versions that are
installed: `make test` has the CPU set's, `make gpu-set-test` the GPU set's.
"""

import contextlib
import re
from functools import cache

import interface_uses
import library_source
import private_interfaces
import pytest

pytestmark = pytest.mark.real  # reads six libraries: 10 s

UTILS = "vllm.model_executor.models.utils"
MAPPER = f"{UTILS}.WeightsMapper"
ENGINE = "vllm.v1.engine.llm_engine.LLMEngine"
OUTPUT = "vllm.v1.engine.output_processor"

IN_OUR_CODE = [  # file, what is there, what is planted, what is said of it
    ("engines/readback.py", "get_unstacked_mapper", "get_plain_mapper", "whose is "),
    ("engines/readback.py", "vllm.lora.utils", "vllm.lora.names", "vllm.lora.names.parse_fine"),
    ("engines/vllm.py", "llm.wake_up()", "llm.wake()", "vllm.LLM.wake_up: nothing uses it"),
    ("engines/vllm.py", "follows_newest", "bnb_state", "whose is request.bnb_state?"),
    ("engines/vllm_internals.py", '"max_loras"', '"max_adapters"', "max_adapters=, max_lora_rank="),
    ("engines/vllm_internals.py", '"head_dtype"', '"head_type"', "config.model:head_dtype: no"),
    ("system/variables.py", "VLLM_NO_USAGE_STATS", "VLLM_NO_STATS", "$VLLM_NO_STATS: system/var"),
    ("offline/trainers.py", "def _get_grad_norm", "def _norm", "_get_grad_norm: it is {"),
    ("backends/unsloth.py", "use_exact_model_name=", "exact=", "dtype=, exact=, "),
]
IN_A_LIBRARY = [  # what is listed, where it is, what is there, what is planted, what is said of it
    (f"{MAPPER}.get_rename_mapper", UTILS, "get_(rename|unstacked)", "get", "not there"),
    ("vllm.LLM", "vllm.engine.arg_utils", "max_lora_rank", "rank", "takes no max_lora_rank"),
    (f"{ENGINE}.add_request", "vllm.v1.engine.llm_engine", r"\bprompt: ", "text: ", "listed are"),
    (f"{OUTPUT}.RequestState.make_request_output", OUTPUT,
     r"(def make_request_output\(\s*self,)", r"\1 reason: str,", "'reason'"),
    ("$VLLM_USE_FLASHINFER_SAMPLER", "vllm.v1.sample.ops.topk_topp_sampler",
     "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_SAMPLER", "not read in vllm.v1.sample"),
    ("ray._private.worker.print_to_stdstream", "ray._private.worker", "ignore_prefix", "prefix",
     "parameters are data, prefix"),
]  # fmt: skip


@contextlib.contextmanager
def forgotten(*caches):
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_the_list_has_what_the_code_uses_and_nothing_else():
    differences = private_interfaces.unlisted()
    assert not differences, "\n".join(("make interfaces, and read what has changed:", *differences))


def test_the_installed_versions_have_what_is_listed():
    problems = private_interfaces.problems()
    assert not problems, "\n".join(problems)


def test_what_is_planted_in_a_library_is_seen(monkeypatch):
    uses, listed = private_interfaces.found_uses(), private_interfaces.listed()
    original = library_source.text_of

    @cache
    def planted(module: str) -> str:
        text = original(module)
        for _, there, before, after, _ in IN_A_LIBRARY:
            text = re.sub(before, after, text) if there == module else text
        return text

    monkeypatch.setattr(library_source, "text_of", planted)
    monkeypatch.setattr(private_interfaces, "found_uses", lambda: uses)
    asked = {path: listed[path] for path, *_ in IN_A_LIBRARY}
    monkeypatch.setattr(private_interfaces, "listed", lambda: asked)
    with forgotten(library_source.definitions, library_source.resolve):
        said = private_interfaces.problems()
    for path, _, _, _, reason in IN_A_LIBRARY:
        (line,) = (line for line in said if line.startswith(f"{path}: "))
        assert reason in line and listed[path]["by"][0] in line


def test_what_is_planted_in_our_code_is_seen(monkeypatch):
    files = {file for file, *_ in (*IN_OUR_CODE, *interface_uses.CONSTANTS)}
    texts = {file: text for file, text in interface_uses.texts().items() if file in files}
    for file, before, after, _ in IN_OUR_CODE:
        assert before in texts[file]
        texts[file] = texts[file].replace(before, after, 1)
    monkeypatch.setattr(interface_uses, "texts", lambda: texts)
    with forgotten(interface_uses.known, interface_uses.trees, private_interfaces.found_uses):
        said = "\n".join(private_interfaces.unlisted())
    for _, _, after, expected in IN_OUR_CODE:
        assert expected in said, after
