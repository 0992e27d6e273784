"""The environment of a fresh interpreter, and the words for its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcproxy.daemon import interpreter


def test_the_folder_of_a_package_that_is_not_installed_is_searched_by_a_fresh_interpreter() -> None:
    folder = str(Path(interpreter.__file__).parents[2])
    path = interpreter.environment({"PYTHONPATH": "/a"})["PYTHONPATH"].split(os.pathsep)
    assert path == [folder, "/a"]
    assert interpreter.environment({"PYTHONPATH": folder}) == {"PYTHONPATH": folder}


@pytest.mark.parametrize(
    ("status", "words"), [(3, "it ended with status 3"), (-9, "SIGKILL ended it"), (-99, "signal 99 ended it")]
)
def test_the_end_of_a_process_in_words(status: int, words: str) -> None:
    assert interpreter.describe_end(status) == words
