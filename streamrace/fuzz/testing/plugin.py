"""The pytest plugin: ``@pytest.mark.stream_race`` runs a test under many timings of simulated streams.

::

    from streamrace import watch

    @pytest.mark.stream_race
    def test_prefetcher():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            batch = load()
        torch.cuda.current_stream().wait_stream(side)
        watch("loss", model(batch))

The test's body runs on a simulated GPU, several times: it must create itself what it changes. Code that uses ``cuda``
and ``torch.cuda.Stream()`` is tested unchanged, and a tensor created without a device is on ``cuda``. Fixtures are set
up once, their values are passed to each run. The test fails if streams race (reported with the race, a *witness* timing
that executes it in reverse order, and a token for that timing), or if its asserts, the tensors passed to ``watch``, or
the returned tensors depend on timing, or on memory that nothing wrote. ``pytest --stream-timing TOKEN`` runs one test
in the token's timing. ``pytest --stream-on-gpu`` runs each once on this machine's GPU, and judges a recording.

A separate process with the GPU runs the marked tests (:mod:`streamrace.fuzz.testing.house`), or the session's own
process if the session requests it (:mod:`streamrace.fuzz.testing.device`).

This file is imported in every session of pytest, so its dependencies are imported where they are needed.
"""

from __future__ import annotations

import inspect
import shlex
import unittest
from collections.abc import Callable, Generator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from streamrace.fuzz.testing import device

if TYPE_CHECKING:
    from streamrace.fuzz.testing.house import House
    from streamrace.fuzz.testing.options import Options
    from streamrace.fuzz.testing.report import BodyFailed

_MARK = "stream_race"
_EXTRA = "watch"
_SECTIONS = pytest.StashKey[list[tuple[str, str]]]()
_TIMING = pytest.StashKey[Any]()
_HOUSE: pytest.StashKey[House] = pytest.StashKey()
_NESTED = "a stream_race test runs in another one: take the mark or the fixture, not both"
_NO_GPU = (
    "this process has no simulated GPU: let the test take the fixture as an argument, then it runs where there is one"
)
_NOTES = "stream_race"  # name of a report's property; properties also come from xdist's workers

StreamRace = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("stream races").addoption(
        "--stream-timing", metavar="TOKEN", help="run the stream_race test of this token once, in the token's timing"
    )
    device.add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the GPU in the earliest hook of a plugin: after it, torch may be imported."""
    device.start(early_config)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(examples=50, ranks=1, profile='', benign='fail', seed=0, uninitialised='fail', gpus=1): run the test "
        "under many timings of simulated streams; fail when streams race, or when what it asserts, watches or returns "
        "depends on timing, or on memory that nothing wrote",
    )
    text = config.getoption("stream_timing")
    if text is not None:
        try:
            from streamrace.device.timing import Timing
            from streamrace.device.tokens import TokenError
        except ModuleNotFoundError as error:
            raise pytest.UsageError(_lacking(error, "--stream-timing")) from None
        if text.startswith("t1,test,"):
            raise pytest.UsageError(
                "--stream-timing: this token is of an older release, whose simulated accelerator is gone: run the test "
                "again, its report gives a new one"
            )
        try:
            config.stash[_TIMING] = Timing.parse(text)
        except TokenError as error:
            raise pytest.UsageError(f"--stream-timing: {error}") from None


def pytest_unconfigure(config: pytest.Config) -> None:
    house = config.stash.get(_HOUSE, None)
    if house is not None:
        house.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select only the token's test, if a token is given."""
    if config.stash.get(_TIMING, None) is None:
        return
    chosen = [item for item in items if _uses(item)]
    if len(chosen) != 1 and not hasattr(config, "workerinput"):
        raise pytest.UsageError(
            f"--stream-timing: this token belongs to one test, but {len(chosen) or 'no'} stream_race tests are chosen: "
            "name the one, as the report's command does"
        )
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    why = device.missed(report.longreprtext) if report.failed and isinstance(collector, pytest.File) else None
    if why and _MARK in collector.path.read_text(encoding="utf-8", errors="replace"):
        report.longrepr = f"{report.longreprtext}\n{why}"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not _is_housed(item):
        return None
    from streamrace.fuzz.testing import house

    stash = item.config.stash
    if _HOUSE not in stash:
        files = dict.fromkeys(str(other.path) for other in item.session.items if _is_housed(other))
        stash[_HOUSE] = house.House(item.config, [*files])
    house.run(item, stash[_HOUSE], nextitem, _is_housed)
    return True


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """Disable pytest-timeout here: it measures where the test runs, without the start of the process."""
    return True if _is_housed(item) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker(_MARK) is None:
        return
    function = getattr(item, "obj", None)
    if isinstance(getattr(item, "cls", None), type) and issubclass(item.cls, unittest.TestCase):  # type: ignore[attr-defined]
        _fail("stream_race marks plain test functions, not the methods of a unittest.TestCase")
    if getattr(function, "is_hypothesis_test", False):
        _fail("stream_race and Hypothesis's @given cannot stand at the same test: draw inside, or parametrize")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    __tracebackhide__ = True
    marks = list(pyfuncitem.iter_markers(_MARK))
    if not marks:
        return None
    options: dict[str, Any] = {}
    for mark in reversed(marks):  # the closest mark is last
        if mark.args:
            _fail(f"stream_race takes its options by name, as in stream_race(examples=50), not {mark.args[0]!r}")
        options.update(mark.kwargs)
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _check(pyfuncitem, pyfuncitem.obj, partial(pyfuncitem.obj, **arguments), options, 1)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call":
        report.sections.extend(item.stash.get(_SECTIONS, []))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print notes about tests that passed."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    passed = [report for report in reports if getattr(report, "when", "") == "call" and report.passed]
    notes = [(report.nodeid, note) for report in passed for name, note in report.user_properties if name == _NOTES]
    if notes:
        terminalreporter.section("stream races: tests that passed", "-")
    for nodeid, note in notes:
        terminalreporter.write_line(f"{nodeid}: {note}")


@pytest.fixture(name=_MARK)
def stream_race_fixture(request: pytest.FixtureRequest) -> StreamRace:
    """``stream_race(function, examples=50, ...)``: what the mark does to a test, for a function without arguments."""
    calls = 0

    def check(function: Callable[[], object], **options: Any) -> None:
        __tracebackhide__ = True
        nonlocal calls
        calls += 1
        if not callable(function):
            _fail(f"stream_race takes a function, not {function!r}")
        _check(request.node, function, function, options, calls)

    return check


def _check(
    item: pytest.Item, function: object, body: Callable[[], object], arguments: Mapping[str, Any], call: int
) -> None:
    """Fail as the test does, or with the findings."""
    __tracebackhide__ = True
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        _fail("stream_race marks plain test functions: async ones have an order of their own")
    outcome = _outcome(item, body, arguments, call)
    if isinstance(outcome, str):
        _fail(outcome)
    if outcome is not None:
        _raise(item, outcome)


def _outcome(
    item: pytest.Item, body: Callable[[], object], arguments: Mapping[str, Any], call: int
) -> str | BodyFailed | None:
    """Return the failure; None if nothing is wrong."""
    if device.on_gpu(item.config):
        from streamrace.fuzz.testing import on_gpu

        return on_gpu.check(body, lambda note: item.user_properties.append((_NOTES, note)))
    if not device.has_gpu():
        return _NO_GPU
    try:
        import_module("streamrace.fuzz.testing.live_trial")
        from streamrace.fuzz.testing.bodies import Problem, steady
        from streamrace.fuzz.testing.options import Options
        from streamrace.fuzz.testing.report import BodyFailed
    except ModuleNotFoundError as error:
        return _lacking(error, "a stream_race test")

    try:
        options = Options.of(arguments)
        with TemporaryDirectory() as folder, steady():
            return _run_trial(item, body, options, call, Path(folder))
    except Problem as error:
        return str(error)
    except BodyFailed as error:
        return error


def _run_trial(item: pytest.Item, body: Callable[[], object], options: Options, call: int, folder: Path) -> str | None:
    from streamrace.fuzz.testing import forked
    from streamrace.fuzz.testing.live_trial import LiveTrial

    if forked.inside:
        return _NESTED
    same = device.repeated(item.config)

    def command(token: str) -> str:
        return f"pytest {shlex.quote(item.nodeid)}{same} --stream-timing {token}"

    trial = LiveTrial(f"{_name(item)}/{call}", command, body, options, folder, partial(_tell, item))
    timing = item.config.stash.get(_TIMING, None)
    try:
        marked = item.get_closest_marker(_MARK) is not None
        return trial.check() if timing is None else trial.once(timing, strict=marked)
    finally:
        item.user_properties += [(_NOTES, note) for note in trial.notes]


def _tell(item: pytest.Item, error: BaseException) -> str:
    return str(item.repr_failure(pytest.ExceptionInfo.from_exception(error)))


def _lacking(error: ModuleNotFoundError, subject: str) -> str:
    """Return what to install, as the plugin is installed without its dependencies; else raise ``error``."""
    from streamrace.device.extras import lacking

    sentence = lacking(error, subject, _EXTRA)
    if sentence is None:
        raise error
    return sentence


def _raise(item: pytest.Item, failed: BodyFailed) -> NoReturn:
    """Raise what the body raised."""
    __tracebackhide__ = True
    if failed.section[1]:
        item.stash.setdefault(_SECTIONS, []).append(failed.section)
    failure = failed.failure
    if failure.output:
        whose = "of the rank" if failure.text.startswith("on rank ") else "of this run"
        item.stash.setdefault(_SECTIONS, []).append((f"output {whose}", failure.output))
    if failure.kind == "Skipped":
        pytest.skip(failure.line.removeprefix("Skipped: "))
    if failure.kind == "XFailed":
        pytest.xfail(failure.line.removeprefix("XFailed: "))
    _fail(failure.text)


def _fail(text: str) -> NoReturn:
    pytest.fail(text, pytrace=False)


def _name(item: pytest.Item) -> str:
    """Return the name within its file: ``test_prefetcher[2]``, ``TestPrefetcher::test_order``."""
    return item.nodeid.partition("::")[2]


def _uses(item: pytest.Item) -> bool:
    return item.get_closest_marker(_MARK) is not None or _MARK in getattr(item, "fixturenames", ())


def _is_housed(item: pytest.Item) -> bool:
    """Check whether the test runs in the separate process."""
    return _uses(item) and not device.has_gpu() and not device.on_gpu(item.config)
