"""Users' tests of stream code, as they write them, and what the pytest plugin says of each."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.sessions import Session

pytest_plugins = ["pytester", "tests.fuzz.sessions"]

PREFETCHER = """
class Prefetcher:
    def __init__(self, wait):
        self.wait, self.side = wait, Stream()
        self.side.rename("copy")

    def next(self):
        with stream(self.side):
            batch = torch.ones(4) * 2
        if self.wait:
            current_stream().wait_stream(self.side)
        return batch
"""

GATHER = """
@pytest.mark.stream_race(ranks=2)
@pytest.mark.parametrize("wait", [True, False])
def test_gather(wait):
    side = Stream()
    mine, whole = torch.zeros(2), torch.empty(4)
    side.wait_stream(current_stream())
    with stream(side):
        mine.fill_(dist.get_rank() + 1.0)
    if wait:
        current_stream().wait_stream(side)
    dist.all_gather_into_tensor(whole, mine)
    current_stream().wait_stream(side)
    watch("whole", whole)
"""


def token_in(output: str) -> str:
    found = re.search(r"Token: (\S+)", output)
    assert found is not None, output
    return found[1]


WITH_AND_WITHOUT_A_WAIT = """
@pytest.mark.stream_race
@pytest.mark.parametrize("wait", [True, False])
def test_prefetcher(wait):
    batch = Prefetcher(wait).next()
    watch("loss", batch.sum())
"""


def place(file_line: str, session: Session) -> str:
    lines = (session.pytester.path / "test_user.py").read_text().splitlines()
    return f"test_user.py:{1 + next(at for at, line in enumerate(lines) if file_line in line)}"


def test_a_prefetcher_without_a_wait_fails_with_race_witness_and_token(session: Session) -> None:
    session.file(
        PREFETCHER,
        WITH_AND_WITHOUT_A_WAIT,
    )
    told = session.run(passed=1, failed=1)
    made = place("torch.ones(4) * 2", session)
    assert "Race 1 of 1: write-read, harmful" in told
    assert f"first  write by mul on stream 'copy'\n           {made} Prefetcher.next\n" in told
    assert "second read by sum on stream 'compute'" in told
    assert f"Missing: stream 'compute' never waits for stream 'copy' after mul ({made} Prefetcher.next)" in told
    assert f"mul ({made} Prefetcher.next) on stream 'copy' takes 8 us longer" in told
    assert "loss: nan instead of 8.0" in told
    assert "fuzz/" not in told  # no traceback into our code
    assert "Again: pytest 'test_user.py::test_prefetcher[False]' --stream-timing t1,test," in told

    token = token_in(told)
    again = session.run("--stream-timing", token, failed=1, deselected=1)
    assert "values depend on timing: loss: nan instead of 8.0" in again
    assert token_in(session.run(passed=1, failed=1)) == token  # the same seed, the same timing


def test_an_assert_in_the_body_judges_and_fails_again_by_its_token(session: Session) -> None:
    session.file(
        PREFETCHER,
        """
        @pytest.mark.stream_race
        def test_prefetcher():
            batch = Prefetcher(wait=False).next()
            for _ in range(3):
                torch.zeros(4)
            assert batch.sum().item() == 8.0
        """,
    )
    told = session.run(failed=1)
    assert "Race 1 of 1: write-read, harmful" in told and "AssertionError: assert nan == 8.0" in told
    again = session.run("--stream-timing", token_in(told), failed=1)
    assert ">       assert batch.sum().item() == 8.0" in again and "E       assert nan == 8.0" in again
    assert "stream timing" in again and "takes 32 us longer" in again
    assert "fuzz/" not in again


def test_an_assert_that_fails_anyway_is_shown_with_the_races_beside_it(session: Session) -> None:
    session.file(
        PREFETCHER,
        """
        @pytest.mark.stream_race
        def test_prefetcher():
            batch = Prefetcher(wait=False).next()
            assert batch.sum().item() == 9.0
        """,
    )
    told = session.run(failed=1)
    assert "E       assert 8.0 == 9.0" in told and "Race 1 of 1: write-read\n" in told


def test_a_missing_record_stream_is_found_and_memory_that_ends_with_the_test_is_no_race(session: Session) -> None:
    session.file(
        """
        @pytest.mark.stream_race
        @pytest.mark.parametrize("told", [True, False])
        def test_scratch(told):
            side, scratch = Stream(), torch.ones(4)
            side.wait_stream(current_stream())
            with stream(side):
                made = scratch * 3
            if told:
                scratch.record_stream(side)
            del scratch
            current_stream().wait_stream(side)
            return {"made": made + 1}
        """
    )
    told = session.run(passed=1, failed=1)
    assert "Race 1 of 1: freed, harmful" in told and "no record_stream tells the allocator" in told
    assert "result.made: 4 of 4 numbers differ, the first at [0]: nan instead of 4.0" in told


BENIGN = """
@pytest.mark.stream_race{options}
def test_flag():
    side, flag = Stream(), torch.zeros(1)
    side.wait_stream(current_stream())
    with stream(side):
        flag.fill_(1)
    flag.fill_(1)
    current_stream().wait_stream(side)
    return flag
"""


def test_a_benign_race_fails_unless_it_is_allowed(session: Session) -> None:
    session.file(BENIGN.format(options=""))
    told = session.run(failed=1)
    assert "Race 1 of 1: write-write, benign" in told and "every value is the same" in told
    assert "To let such races pass: @pytest.mark.stream_race(benign='allow')" in told
    session.run("--stream-timing", token_in(told), passed=1)
    session.file(BENIGN.format(options="(benign='allow')"))
    session.run(passed=1)


def test_allowing_benign_races_does_not_allow_one_that_nobody_can_judge(session: Session) -> None:
    session.file(BENIGN.format(options="(benign='allow')").replace("    return flag\n", ""))
    told = session.run(failed=1)
    assert "write-write, not judged" in told and "the test watches no value and reads none" in told


def test_values_that_go_by_query_fail_without_a_race_and_say_so(session: Session) -> None:
    session.file(
        """
        @pytest.mark.stream_race
        def test_query():
            side, event = Stream(), Event()
            with stream(side):
                made = torch.ones(4)
                event.record(side)
            torch.zeros(1), torch.zeros(1)
            ready = event.query()
            current_stream().wait_stream(side)
            return made + (1 if ready else 2)
        """
    )
    told = session.run(failed=1)
    assert "values depend on timing: result: 4 of 4 numbers differ, the first at [0]: 3.0 instead of 2.0" in told
    assert "No race explains it" in told
    assert "3.0 instead of 2.0" in session.run("--stream-timing", token_in(told), failed=1)


def test_a_race_that_drives_a_kernel_out_of_bounds_is_harmful(session: Session) -> None:
    session.file(
        """
        @pytest.mark.stream_race
        def test_lookup():
            side, table = Stream(), torch.ones(8, 3)
            with stream(side):
                rows = torch.ones(2, dtype=torch.int64) + 1
            torch.zeros(1)
            return torch.nn.functional.embedding(rows, table)
        """
    )
    assert "IndexError: index out of range in self" in session.run(failed=1)


def test_two_ranks_gather_what_one_of_them_has_not_written(session: Session) -> None:
    session.file(GATHER)
    told = session.run(passed=1, failed=1)
    assert "second read by all_gather on stream 'nccl 0,1'\n           test_user.py:" in told
    assert "of rank 0 takes" in told
    assert "whole on rank 1: 2 of 4 numbers differ, the first at [0]: 0.0 instead of 1.0" in told


def test_a_rank_that_fails_or_skips_is_told_as_any_test(session: Session) -> None:
    session.file(
        """
        @pytest.mark.stream_race(ranks=2)
        def test_sum():
            print("rank", dist.get_rank())
            assert torch.ones(2).sum().item() == dist.get_rank() + 2

        @pytest.mark.stream_race(ranks=2)
        def test_skipped():
            pytest.skip("not here")
        """
    )
    told = session.run("-rs", failed=1, skipped=1)
    assert "on rank 1:" in told and "E       assert 2.0 == (1 + 2)" in told and "not here" in told
    assert "output of the rank" in told and "\nrank 1\n" in told


def test_fixtures_are_set_up_once_and_given_to_each_run(session: Session) -> None:
    session.file(
        PREFETCHER,
        """
        calls = []

        @pytest.fixture
        def factor():
            calls.append(1)
            return 3.0

        class TestPrefetcher:
            @pytest.mark.stream_race(examples=3)
            def test_scaled(self, factor):
                batch = Prefetcher(wait=False).next()
                watch("scaled", batch * factor)

        def test_once():
            assert calls == [1]
        """,
    )
    told = session.run(passed=1, failed=1)
    assert "scaled: 4 of 4 numbers differ, the first at [0]: nan instead of 6.0" in told
    assert "name=TestPrefetcher::test_scaled," in told


def test_the_fixture_takes_a_function(session: Session) -> None:
    session.file(
        PREFETCHER,
        """
        def test_both(stream_race):
            stream_race(lambda: Prefetcher(wait=True).next())
            stream_race(lambda: Prefetcher(wait=False).next(), examples=5)
        """,
    )
    told = session.run(failed=1)
    assert "harmful race" in told
    token = token_in(told)
    assert token.startswith("t1,test,call=2,name=test_both,")
    assert "nan instead of 2.0" in session.run("--stream-timing", token, failed=1)


def test_xdist_spreads_the_tests(session: Session) -> None:
    session.file(
        PREFETCHER,
        WITH_AND_WITHOUT_A_WAIT,
    )
    result = session.pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Token: t1,test,name=test_prefetcher%5BFalse%5D,0/0.0/init//mul/1+8us"])


def test_a_session_that_does_not_use_it_does_not_import_torch() -> None:
    seen = "import fuzz.testing.plugin, sys; sys.exit('torch' in sys.modules or 'hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", seen], check=False).returncode == 0
