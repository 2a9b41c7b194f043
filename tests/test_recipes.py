"""The recipes of the package: short, with a header that says what they are, and planned for."""

import io
import json

import pytest

from unslothrl.commands import cli, recipes
from unslothrl.config.reading import RECIPES
from unslothrl.planning.machine import Machine

MOST_LINES = 40


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_and_says_what_it_is_for(name):
    assert len(RECIPES[name].read_text().splitlines()) <= MOST_LINES
    recipe = recipes.look(name, RECIPES[name], Machine.detect())
    assert all((recipe.hardware, recipe.task, recipe.memory, recipe.time, recipe.reward))
    assert recipe.is_measured or "not measured yet" in (recipe.time, recipe.reward)


def test_the_list_says_what_fits(monkeypatch):
    out = io.StringIO()
    recipes.show("24,24", as_json=True, out=out)
    found = {each["name"]: each for each in json.loads(out.getvalue())}
    assert found.keys() == RECIPES.keys()
    assert found["two-cards-24"]["fits"] and found["tiny-cpu"]["fits"]
    out = io.StringIO()
    recipes.show("8", as_json=True, out=out)
    found = {each["name"]: each for each in json.loads(out.getvalue())}
    assert not found["two-cards-24"]["fits"] and found["two-cards-24"]["why_not"]
    assert found["tiny-cpu"]["fits"]


def test_the_command_lists_those_that_fit_first(capsys):
    assert cli.main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tiny-cpu: fits here") and "use one: unslothrl train --recipe" in text
    assert cli.main(["recipes", "--card", "x"]) == 2
    assert "card must be GB" in capsys.readouterr().err
