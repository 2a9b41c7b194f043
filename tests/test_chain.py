"""From a base without the form over SFT, DPO and a reward model to RL; `make chain-test`.

bench/results/chain-cpu.json has three seeds.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import chain

pytestmark = pytest.mark.slow

# Stage -> the most before it, the least after it, the most after its control. Of 400 answers to 100
# problems the standard error of a share is at most 0.05.
BOUNDS = {
    "sft": (0.1, 0.8, 0.1),
    "dpo": (0.5, 0.8, 0.7),  # before the first step all pairs are ties
    "rm": (0.75, 0.8, 0.75),
}


def test_every_stage_of_the_chain_learns_and_its_control_does_not(tmp_path):
    base = chain.make_base(tmp_path / "base")
    found = chain.Chain(base, tmp_path / "chain", seed=0).figures()
    for stage, (before, after, control) in BOUNDS.items():
        assert found[stage]["before"] <= before, (stage, found)
        assert found[stage]["after"] > after, (stage, found)
        assert found[stage]["after its control"] <= control, (stage, found)
    rl, exported = found["RL"], found["export"]
    assert rl["after"] > rl["before"] + 0.1, found
    assert rl["after its control"] < rl["before"] + 0.08, found
    assert exported["after"] > rl["before"] + 0.1, found
    assert exported["answers in the form"] > 0.8, found
