"""Sessions as they are typed: marked tests run where a simulated GPU is, the others where they always did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


def started(
    folder: Path, *arguments: str, installed: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A session as it is typed, with this plugin and no other; ``installed``: with all that there are."""
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    alone = {} if installed else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugin = [] if installed else ["-p", "streamrace.fuzz.testing.plugin"]
    command = [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", *arguments]
    given = {**os.environ, **fixed, **alone, **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


# -- without an option: beside the session ----------------------------------------------------------------------

MIXED = """
import os
import pytest
import torch
from torch.cuda import Stream, current_stream, stream
from streamrace import watch

made = []

@pytest.fixture(scope="module")
def factor():
    made.append(os.getpid())
    yield 3.0
    print("torn down once")

def test_unmarked():
    assert not torch.cuda.is_available() and torch.zeros(1).device.type == "cpu"

@pytest.mark.stream_race(examples=1)
@pytest.mark.parametrize("wait", [True, False])
def test_prefetcher(wait, factor):
    side = Stream()
    with stream(side):
        batch = torch.ones(4) * 2
    if wait:
        current_stream().wait_stream(side)
    watch("loss", batch.sum() * factor)

@pytest.fixture(scope="module")
def host():
    yield 1
    assert False, "torn down here"

def test_between(host):
    assert made == []

@pytest.mark.stream_race(examples=1)
def test_logged(factor):
    print("printed by a test that fails")
    side, batch = torch.cuda.Stream(), torch.ones(4, device="cuda") * factor
    batch.sum().item()
    with torch.cuda.stream(side):
        twice = batch * 2
    torch.cuda.current_stream().wait_stream(side)
    assert len(made) == 1
    return twice

@pytest.mark.stream_race
@pytest.mark.skip("not today")
def test_skipped(): pass

def test_too_late(request):
    request.getfixturevalue("stream_race")(lambda: torch.ones(3))

def test_function(stream_race):
    stream_race(lambda: torch.ones(3), examples=1)
"""
IMPATIENT = """
import sys
import pytest

def pytest_collection_modifyitems(items):
    if "streamrace.device.library" not in sys.modules:  # where no marked test runs, none can take too long
        for item in items:
            if item.get_closest_marker("stream_race"):
                item.add_marker(pytest.mark.timeout(0.001))
"""
OTHER = """
with open("imported", "a") as file:
    file.write("once\\n")
def test_other(): pass
"""


def test_marked_tests_have_a_gpu_and_the_others_do_not_notice(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(MIXED)
    (tmp_path / "test_z.py").write_text(OTHER)
    (tmp_path / "conftest.py").write_text(IMPATIENT)
    files = f"--junitxml={tmp_path / 'told.xml'}", f"--basetemp={tmp_path / 'temp'}"
    done = started(tmp_path, "-rA", "-W", "error", *files, installed=True)
    assert "2 failed, 6 passed, 1 skipped, 1 error in" in done.stdout, done.stdout + done.stderr
    assert "_ ERROR at teardown of test_function _" in done.stdout and "AssertionError: torn down here" in done.stdout
    assert "SKIPPED [1] test_user.py:" in done.stdout and ": not today" in done.stdout
    assert "Race 1 of 1: write-read, harmful" in done.stdout and "loss: nan instead of 24.0" in done.stdout
    again = re.search(r"Again: pytest '(\S+)' --stream-timing (\S+)", done.stdout)
    assert again is not None and again.groups() == ("test_user.py::test_prefetcher[False]", "t1,0/1/aten::mul/1+8us")
    assert done.stdout.count("torn down once") == 1
    line = 1 + MIXED.splitlines().index("    batch.sum().item()")
    assert f"test_user.py::test_logged: Fragile: only the read at test_user.py:{line} test_logged puts" in done.stdout
    assert "this process has no simulated GPU: let the test take the fixture as an argument" in done.stdout
    assert (tmp_path / "told.xml").read_text().count("<testcase") == 9
    assert (tmp_path / "imported").read_text() == "once\n"  # nothing is imported beside the session that has no marks


SIDE = """
import pytest

@pytest.mark.stream_race(examples=1)
@pytest.mark.parametrize("wait", [True, False])
def test_side(wait):
    import torch
    side, made = torch.cuda.Stream(), torch.zeros(2)
    made.sum().item()
    with torch.cuda.stream(side):
        made.add_(1)
    if wait:
        torch.cuda.current_stream().wait_stream(side)
    return made
"""


def test_by_a_token_and_on_a_worker_of_xdist_too(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(SIDE)
    arguments = ("test_user.py::test_side", "-k", "False", "--stream-timing", "t1,0/1/aten::add/1+8us")
    done = started(tmp_path, *arguments, "-p", "xdist.plugin", "-n", "1")
    assert "values depend on timing: result: 2 of 2 numbers differ" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout


BROKEN = """
import os
import pytest

@pytest.fixture
def killed():
    os._exit(3)

@pytest.mark.stream_race
def test_killed(killed): pass

@pytest.mark.stream_race
def test_later(): pass

def test_unmarked(): pass
"""


def test_when_the_process_with_the_gpu_ends_its_tests_fail_and_the_session_goes_on(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(BROKEN)
    done = started(tmp_path, "--capture=sys")
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "the process with the simulated GPU ended in the middle (3)" in done.stdout
    assert "the process with the simulated GPU has ended before (3)" in done.stdout


MARKED = "import pytest\n@pytest.mark.stream_race\ndef test_it(): pass\ndef test_unmarked(): pass\n"


def test_where_there_can_be_no_gpu_each_marked_test_says_why(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(MARKED)
    done = started(tmp_path, PATH=str(tmp_path), CXX="none")
    assert "there can be no simulated GPU: the simulated GPU is built once with a C++ compiler" in done.stdout
    assert "1 failed, 1 passed" in done.stdout and "Traceback" not in done.stdout, done.stdout + done.stderr

    lacking = tmp_path / "lacking"
    lacking.mkdir()
    (lacking / "msgpack.py").write_text("raise ModuleNotFoundError('no msgpack', name='msgpack')\n")
    done = started(tmp_path, PYTHONPATH=f"{lacking}:{ROOT}")
    assert "a stream_race test needs the extra watch: pip install" in done.stdout, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout and "Traceback" not in done.stdout


def test_a_file_that_says_cuda_when_it_is_imported_is_told_what_to_ask_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_user="import pytest, torch\nweight = torch.ones(3, device='cuda')\n"
        "@pytest.mark.stream_race\ndef test_ones(): return weight\n"
    )
    told = pytester.runpytest_inprocess("-p", "no:cacheprovider").stdout.str()
    assert "only stream_race tests have a GPU here, and this file asks for one when it is imported" in told
    assert "'stream_race_device = cuda' in pytest's ini file, or pytest --stream-device cuda" in told


def test_a_session_that_does_not_use_it_does_not_import_torch() -> None:
    seen = (
        "import streamrace.fuzz.testing.plugin, streamrace.fuzz.testing.house, sys; "
        "sys.exit('torch' in sys.modules or 'hypothesis' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", seen], check=False).returncode == 0


# -- with the option: the session itself ------------------------------------------------------------------------


def test_the_gpu_is_there_before_a_conftest_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nstream_race_device = cuda\n")
    (tmp_path / "conftest.py").write_text("import torch\nassert torch.cuda.is_available()\n")
    (tmp_path / "test_user.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.stream_race(examples=1)\n"
        "def test_ones():\n    return torch.ones(2) + torch.ones(2, device='cuda')\n"
    )
    done = started(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def wrong(folder: Path, *arguments: str, **environment: str) -> str:
    done = started(folder, *arguments, **environment)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and re.search("^ERROR: ", done.stderr, re.MULTILINE)
    return done.stderr


def test_without_a_compiler_the_session_ends_with_a_sentence(tmp_path: Path) -> None:
    told = wrong(tmp_path, "--stream-device", "cuda", PATH=str(tmp_path), CXX="none")
    assert (
        "there can be no simulated GPU (--stream-device): the simulated GPU is built once with a C++ compiler" in told
    )
    assert "install g++" in told


def test_a_cuda_build_whose_cpu_build_cannot_be_had_is_told_in_a_sentence(tmp_path: Path) -> None:
    torch = tmp_path / "site" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "lib" / "libtorch_cuda.so").touch()
    (torch / "__init__.py").touch()
    (tmp_path / "pytest.ini").write_text("[pytest]\nstream_race_device = cuda\n")
    where = {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "STREAMRACE_CACHE": str(tmp_path / "cache")}
    told = wrong(tmp_path, **where, STREAMRACE_CPU_TORCH="/no/such.whl")
    assert "there can be no simulated GPU (stream_race_device): torch " in told and "cannot be had: " in told


def test_who_asks_too_late_is_told_in_a_sentence(pytester: pytest.Pytester) -> None:
    import torch  # noqa: F401 - as a plugin may have done

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--stream-device", "cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "has to be there before torch is imported, and torch is imported already" in result.stderr.str()
    pytester.makeini("[pytest]\nstream_race_device = rocm\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "stream_race_device is 'cuda' or nothing, not 'rocm'" in result.stderr.str()


@pytest.mark.wide
def test_workers_of_xdist_have_a_gpu_each(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(SIDE)
    line = 1 + SIDE.splitlines().index("    made.sum().item()")
    for asked in ((), ("--stream-device", "cuda")):
        done = started(tmp_path, *asked, "-p", "xdist.plugin", "-n", "2")
        assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
        assert "Token: t1,0/1/aten::add/1+8us" in done.stdout
        assert f"test_side[True]: Fragile: only the read at test_user.py:{line} test_side puts" in done.stdout
