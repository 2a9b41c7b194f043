"""tests/private_interfaces.json against the package's code and against the versions that are
installed: `make test` has the CPU set's, `make gpu-set-test` the GPU set's.

The history: the read-back asked vLLM for `get_rename_mapper`, which 0.26 lacks, on a value of type
Any, behind a hasattr. All tests passed with 0.32, and every run on a GPU ended at its start.
"""

import re
from functools import cache

import library_source
import private_interfaces
import pytest

pytestmark = pytest.mark.real  # reads six libraries: 10 s

UTILS, MANAGER = "vllm.model_executor.models.utils", "vllm.lora.model_manager"
MAPPER = f"{UTILS}.WeightsMapper.get_rename_mapper"
IN_OUR_CODE = [  # what is there, what is planted, what is said of it
    ("get_unstacked_mapper", "get_plain_mapper", "whose is get_plain_mapper?"),
    ("manager._last_mapping", "manager._mapping_before", "whose is _mapping_before?"),
    ("vllm.lora.utils", "vllm.lora.names", "vllm.lora.names.parse_fine_tuned_lora_name: engines/"),
    ("VLLM_NO_USAGE_STATS", "VLLM_NO_STATS", "$VLLM_NO_STATS: variables.py uses it"),
    ("worker_extension_cls", "extension", "vllm.LLM: no file gives it worker_extension_cls"),
]
IN_A_LIBRARY = [  # what is listed, where it is, what is there, what is planted, what is said of it
    (MAPPER, UTILS, "get_(rename|unstacked)", "get", "not there"),
    (f"{MANAGER}.LoRAModelManager._last_mapping", MANAGER, "_last_mapping", "_map", "not there"),
    ("vllm.LLM", "vllm.engine.arg_utils", "max_lora_rank", "rank", "takes no max_lora_rank"),
    (
        "vllm.v1.engine.llm_engine.LLMEngine.add_request",
        "vllm.v1.engine.llm_engine",
        r"\bprompt: ",
        "text: ",
        "listed are",
    ),
    (
        "$VLLM_USE_FLASHINFER_SAMPLER",
        "vllm.v1.sample.ops.topk_topp_sampler",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "VLLM_SAMPLER",
        "not read in vllm.v1.sample",
    ),
    (
        "ray._private.worker.print_to_stdstream",
        "ray._private.worker",
        "ignore_prefix",
        "prefix",
        "parameters are data, prefix",
    ),
]


def test_the_list_has_what_the_code_uses_and_nothing_else():
    assert private_interfaces.unlisted() == []


def test_the_installed_versions_have_what_is_listed():
    assert list(private_interfaces.problems()) == []


@pytest.mark.slow
def test_what_is_planted_in_a_library_is_seen(monkeypatch):
    listed = private_interfaces.listed()
    original = library_source.text_of

    @cache
    def planted(module: str) -> str:
        text = original(module)
        for _, there, before, after, _ in IN_A_LIBRARY:
            text = re.sub(before, after, text) if there == module else text
        return text

    caches = (library_source.definitions, library_source.lazy, library_source.resolve)
    monkeypatch.setattr(library_source, "text_of", planted)
    some = {path: listed[path] for path, *_ in IN_A_LIBRARY}
    monkeypatch.setattr(private_interfaces, "listed", lambda: some)
    for each in caches:
        each.cache_clear()
    said = list(private_interfaces.problems())
    for each in caches:
        each.cache_clear()
    for path, _, _, _, reason in IN_A_LIBRARY:
        (line,) = (line for line in said if line.startswith(f"{path}: "))
        assert reason in line and listed[path]["by"][0] in line


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "expected"), IN_OUR_CODE)
def test_what_is_planted_in_our_code_is_seen(before, after, expected, monkeypatch):
    texts = {file: text.replace(before, after) for file, text in private_interfaces.texts().items()}
    assert texts != private_interfaces.texts()
    monkeypatch.setattr(private_interfaces, "texts", lambda: texts)
    assert any(line.startswith(expected) for line in private_interfaces.unlisted())


def test_either_of_two_names_is_enough():
    """`get_rename_mapper` is in vLLM from 0.29 on, `get_unstacked_mapper` before it."""
    entry = {"or": [MAPPER, MAPPER.replace("rename", "unstacked")]}
    assert private_interfaces.problem(f"{UTILS}.no_such", entry) is None
    assert private_interfaces.problem(f"{UTILS}.no_such", {}) == "not there"
