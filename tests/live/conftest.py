"""Imports that take seconds are done once, in the process that the ranks are forked from."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    from streamrace.frameworks.deepspeed import adapter as deepspeed

    deepspeed.warm_up()
