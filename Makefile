# `make train` and `make test` do everything on a fresh machine. SET=cpu or SET=gpu overrides the choice
# of packages, PYTHON names the Python to start with, ARGS goes to the program or to pytest.
.SUFFIXES:
.DEFAULT_GOAL := help

PYTHON ?= python3
SET ?=
ARGS ?=

# Tests read and write text in any locale.
export PYTHONUTF8 = 1
unexport PYTHONDONTWRITEBYTECODE  # compiled tests are kept, which saves a quarter of `make quick`

setup = $(PYTHON) tools/setup_env.py $(if $(SET),--set $(SET))
bin = .venv/bin
PYTEST = $(bin)/python -m pytest
QUICK = $(PYTEST) --quick -p no:unraisableexception -p no:anyio
GPU_SET = .venv-gpu-set
ON_GPU_SET = $(GPU_SET)/bin/python -m pytest
GPU_SET_TESTS = $(addprefix tests/test_,$(addsuffix .py,engines readback canary actor backend learner \
    private_interfaces main_job resume eval))

.PHONY: help setup gpu-set check train demo quick test slow document-test learn-test chain-test run-test offline-test \
	engine-test family-test cluster-test host-test split-test suite-test hostile-test package-test unsloth-test trl-test card-test \
	gpu-set-test machines-test recipe-test tracker-test notebook-test report-test llama-test site interfaces lint lock release clean

help:           ## show this list
	@sed -n 's/^\([a-z-]*:\).*## /  make \1 /p' Makefile

setup:          ## create .venv, or check that it is up to date (SET=cpu, SET=gpu)
	@$(setup)

gpu-set:        ## the GPU set in .venv-gpu-set, with the CPU build of its vLLM, to test it without a GPU
	@$(PYTHON) tools/gpu_set.py

check:          ## show what set-up would do and whether this machine can do it, without downloading
	@$(setup) --check

train: setup    ## set up, then train with GRPO (ARGS="--max_steps 5")
	$(bin)/python train_distributed.py --learner grpo $(ARGS)

demo: setup     ## set up, then watch a tiny model learn to subtract, in a minute
	$(bin)/unslothrl demo $(ARGS)

quick: setup    ## before an edit: the tests that need no model, no Ray and no vLLM, half a minute
	$(QUICK) -n 2 --dist loadfile --assert plain $(ARGS) || { $(QUICK) --last-failed $(ARGS); false; }

test: setup     ## set up, then run every test except the slow ones, each file in one of two processes
	$(PYTEST) -n 2 --dist loadfile --durations 60 $(ARGS)

slow: run-test offline-test engine-test family-test cluster-test host-test split-test suite-test hostile-test package-test \
	learn-test unsloth-test trl-test card-test gpu-set-test machines-test recipe-test tracker-test \
	notebook-test report-test llama-test ## every long test, then whole runs
	$(bin)/python bench/embedded.py
	$(bin)/python bench/chain.py
	$(bin)/python bench/faults.py all

document-test: setup ## test what the documents show, every command of theirs too
	$(PYTEST) -m "not gpu" tests/test_docs.py tests/test_commands.py $(ARGS)

learn-test: setup ## ten steps must raise pass@1, and with shuffled rewards must not
	$(PYTEST) -m slow tests/test_learning.py $(ARGS)

chain-test: setup ## SFT, DPO, a reward model and RL in a chain, and what they learn from shuffled labels
	$(PYTEST) -m slow tests/test_chain.py $(ARGS)

# Slow tests by what they test; tests/test_ci.py keeps the lists whole.
files = $(patsubst %,tests/test_%.py,$(1))
slow_tests = $(PYTEST) -m slow -n 2 --dist loadfile $(call files,$(1)) $(ARGS)

run-test: setup ## whole runs: every learner, stop, resume and start; learners, bases, exports
	$(call slow_tests,main_job resume loop start_again starting_adapter mirror mirrored_runs base_parts \
	    base_model backend learner learner_state logprobs tracing export gguf use reward_model plan eval decoder \
	    out_of_memory estimates batching sampler_gap)

offline-test: setup ## SFT, DPO and reward models, killed at random steps and resumed, end as if they had not been
	$(call slow_tests,offline_resume offline_inputs offline_gradients offline_trainers offline_shards \
	    offline_malice plan_of_stages)

engine-test: setup ## both engines: versions in flight, the read-back, false alarms
	$(call slow_tests,engines versions readback canary real_episodes)

family-test: setup ## each family of models: the main job over vLLM, a resume to the bit, packs, a served export; first batches
	$(call slow_tests,families check_model planted_faults first_batch)

cluster-test: setup ## Ray: starting, joining, cards, learners over processes; nodes that join, drain and die
	$(call slow_tests,cluster moving_nodes starting joining placement exchange several_learners \
	    shards context divided_runs)

host-test: setup ## a run on two nodes, and one on two hosts, one of which loses an actor
	$(PYTEST) -m slow $(call files,nodes two_hosts divided_hosts) $(ARGS)

split-test: setup ## vLLM over two workers: its completions, its adapter checks, no leftover processes
	$(call slow_tests,split_engine staged_engine)

suite-test: setup ## environments: other libraries', broken ones, 10,000 episodes, the page's commands; benchmarks
	$(call slow_tests,environment_suites environments_page documented_forms \
	    broken_environments hostile_messages python_tool search_tool newcomer_environment \
	    dialogue dialogue_families benchmarks)

hostile-test: setup ## every hostile program at every level, wrong files and options, mistakes of users
	$(call slow_tests,sandbox processes assertions custom scoring trl_rewards fuzz \
	    mistakes damaged_resumes trial)

package-test: setup ## the wheel, a machine without a network, cards, newcomers' files, other libraries' interfaces
	$(call slow_tests,wheel network doctor shapes data terminal objectives newcomer_objective \
	    newcomer_reward private_interfaces setup stopping embedded demo api)

unsloth-test: gpu-set ## Unsloth against PEFT, and its engine, under Triton's interpreter
	$(ON_GPU_SET) -m slow tests/test_unsloth.py tests/test_unsloth_share.py \
	    tests/test_unsloth_stages.py tests/test_unsloth_engine.py tests/test_unsloth_families.py $(ARGS)

trl-test: setup ## losses and advantages against TRL's own code
	$(bin)/python tools/peers.py trl
	$(PYTEST) -m slow tests/test_trl.py $(ARGS)

card-test: gpu-set ## the whole GPU set on simulated GPUs: vLLM's start, its LoRA layers, what it is asked
	VLLM_PLUGINS= $(ON_GPU_SET) -m slow tests/test_vllm_card.py $(wildcard tests/test_gpu_set_*.py) \
	    $(ARGS)

machines-test: gpu-set ## docs/install.md is what the commands say on thirteen simulated machines
	$(ON_GPU_SET) -m slow tests/test_machines_page.py tests/test_bare_machines.py $(ARGS)

gpu-set-test: gpu-set ## engines, actors, learner, resume and the main job with the GPU set's versions
	PYTHONPATH=$(CURDIR)/$(GPU_SET)/cpu-vllm VLLM_PLUGINS= $(ON_GPU_SET) -n 2 --dist loadfile \
	    $(GPU_SET_TESTS) $(ARGS)
	PYTHONPATH=$(CURDIR)/$(GPU_SET)/cpu-vllm VLLM_PLUGINS= $(ON_GPU_SET) -m slow tests/test_families.py \
	    -k "trained and Qwen3.5" $(ARGS)

site: setup     ## build docs/ as a site in build/site; a broken link is an error
	$(bin)/python tools/peers.py site
	PYTHONPATH=.venv/peers/site $(bin)/python -m sphinx -W --keep-going -n -q docs build/site

recipe-test: setup ## two steps of every recipe on the embedded base
	$(PYTEST) -m real -rP -n 2 tests/test_recipes.py $(ARGS)

tracker-test: setup ## what TensorBoard, W&B and Trackio read from a run, with their own packages
	$(bin)/python tools/peers.py trackers
	PYTHONPATH=$(CURDIR)/.venv/peers/trackers:$(PYTHONPATH) $(PYTEST) -m slow tests/test_trackers.py $(ARGS)

notebook-test: setup ## the notebooks from a clean kernel (ARGS="--write" keeps the outputs)
	$(bin)/python tools/peers.py notebooks
	PYTHONPATH=$(CURDIR)/.venv/peers/notebooks:$(PYTHONPATH) $(bin)/python tools/notebooks.py $(ARGS)
	PYTHONPATH=$(CURDIR)/.venv/peers/notebooks:$(PYTHONPATH) $(PYTEST) -n 0 -m slow tests/test_api.py -k notebook

report-test: setup ## the report's page and that of `unslothrl ui` in a headless Chromium, which must be installed
	$(bin)/python tools/peers.py axe
	$(PYTEST) -m slow tests/test_report_page.py tests/test_ui_page.py $(ARGS)

llama-test: setup ## GGUF files against llama.cpp's own logits and tokens
	$(bin)/python tools/peers.py llama-cpp
	$(PYTEST) -m slow -rP tests/test_llama_cpp.py $(ARGS)

interfaces: setup ## list anew which private interfaces of vLLM, Unsloth and others the package uses
	$(bin)/python tools/private_interfaces.py
	test ! -x .venv-gpu-set/bin/python || .venv-gpu-set/bin/python tools/private_interfaces.py

lint: setup     ## ruff, mypy, and the locks against pyproject.toml
	$(bin)/python -m ruff check .
	$(bin)/python -m ruff format --check .
	$(bin)/python -m mypy
	$(bin)/python tools/lock.py --check

lock: setup     ## write the requirements files from pyproject.toml (needs uv and a network)
	$(bin)/python tools/lock.py $(ARGS)

release: setup  ## sdist and wheel in dist/, tried in an empty environment (VERSION=0.2.0; ARGS="--python python3.12")
	$(bin)/python tools/release.py $(if $(VERSION),--version $(VERSION)) $(ARGS)

clean:          ## remove .venv and caches; runs/ is kept
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
