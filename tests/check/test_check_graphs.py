"""Programs with CUDA graphs under ``check``: each mistake is told with the captured line, its right twin is clean."""

from __future__ import annotations

import pytest

from tests.check.conftest import Checking, Done

HEAD = """
    import sys, torch

    right = sys.argv[1] == "right"
    torch.manual_seed(0)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    w, x = torch.randn(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")

    def model(x):
        return (x @ w).relu()  # model

    def capture(work, **how):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, **how):
            out = work()
        return graph, out
"""
INPUT = """
    graph, y = capture(lambda: model(x))
    for batch in [torch.randn(64, 64).pin_memory() for _ in range(4)]:
        if right:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            x.copy_(batch, non_blocking=True)  # loaded
        main.wait_stream(side)
        graph.replay()  # replayed
    print(y.sum().item())
"""
OUTPUT = """
    graph, y = capture(lambda: model(x))
    total = torch.zeros((), device="cuda")
    for number in range(3):
        x.fill_(number)
        graph.replay()  # replayed
        side.wait_stream(main)
        with torch.cuda.stream(side):
            total += y.sum()  # read
        if right:
            main.wait_stream(side)
    side.synchronize()
    print(total.item())
"""
POOL = """
    first, y = capture(lambda: model(x))
    total = y.sum()
    del y
    second, z = capture(lambda: model(w), pool=None if right else first.pool())
    side.wait_stream(main)
    first.replay()  # replayed
    with torch.cuda.stream(side):
        second.replay()
    torch.cuda.synchronize()
    print(z.sum().item())
"""
FORK = """
    def forked():
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        y = x.add(1)  # captured
        if right:
            side.wait_stream(here)
        with torch.cuda.stream(side):
            z = y * 2  # read
        here.wait_stream(side)
        return z

    graph, z = capture(forked)
    graph.replay()  # replayed
    print(z.sum().item())
"""
RACES = {
    "input": (INPUT, "model", "loaded"),
    "output": (OUTPUT, "model", "read"),
    "pool": (POOL, "model", "replayed"),
    "fork": (FORK, "captured", "read"),
}

FREED = """
    bias = torch.ones(64, 64, device="cuda")  # meant
    graph, y = capture(lambda: model(x) + bias)  # used
    if not right:
        del bias
    other = torch.full((64, 64), 7.0, device="cuda")
    graph.replay()  # replayed
    print(y[0, 0].item())
"""
KEPT = """
    graph, y = capture(lambda: model(x))
    results = []
    for number in range(4):
        x.fill_(number)
        graph.replay()
        results.append(y.clone() if right else y)
    for result in results:
        print(result.sum().item())  # used
"""
KEPT_VIEWS = KEPT.replace("else y)", "else y[0])")
ORDER = """
    first, total = capture(lambda: model(x).sum())
    second, y = capture(lambda: x + 1, pool=first.pool())  # meant
    first.replay()
    second.replay()
    if not right:
        first.replay()
    print(y.sum().item())  # used
"""
WORKSPACE = """
    kept = [torch.empty(64, 64, device="cuda")] if right else []

    def work():
        temporary = x * 2
        total = temporary.sum()
        del temporary
        if not kept:
            kept.append(torch.empty(64, 64, device="cuda"))  # meant
        return total

    graph, total = capture(work)
    kept[0].fill_(5)
    graph.replay()
    print(kept[0].sum().item())  # used
"""
MEMORY = {
    "freed": (FREED, "freed"),
    "kept": (KEPT, "kept"),
    "kept views": (KEPT_VIEWS, "kept"),
    "order": (ORDER, "overwritten"),
    "workspace": (WORKSPACE, "overwritten"),
}


def run(check: Checking, program: str, which: str, *options: str) -> Done:
    return (
        check(check.script(HEAD + program), which)
        if not options
        else check(*options, check.script(HEAD + program), which)
    )


def line(program: str, mark: str) -> int:
    lines = (HEAD + program).strip().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_told_with_the_captured_line_and_that_of_the_replay(name: str, check: Checking) -> None:
    program, captured, other = RACES[name]
    done = run(check, program, "wrong")
    assert (done.status, done.findings["verdict"]) == (1, "race"), done.out + done.err
    sides = [race[side] for race in done.findings["races"] for side in ("first", "second")]
    places = {
        (frame["line"], frame["function"].endswith("(captured)")) for side in sides for frame in side["stack"][:2]
    }
    assert {(line(program, captured), True), (line(program, "replayed"), False)} <= places
    assert line(program, other) in {number for number, _ in places}


@pytest.mark.parametrize("name", RACES)
def test_its_right_twin_is_clean(name: str, check: Checking) -> None:
    done = run(check, RACES[name][0], "right")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err


@pytest.mark.parametrize("name", MEMORY)
def test_memory_that_another_tensor_has_is_told_though_all_is_ordered(name: str, check: Checking) -> None:
    program, kind = MEMORY[name]
    done = run(check, program, "wrong")
    assert (done.status, done.findings["verdict"], done.findings["races"]) == (5, "graph-memory", []), (
        done.out + done.err
    )
    (found,) = done.findings["checked"]["graph_memory"]
    assert found["kind"] == kind
    assert found["stack"][0][1] == line(program, "used")
    if "# meant" in program:
        assert found["allocated"][0][1] == line(program, "meant")
    assert f"train.py:{line(program, 'used')}" in done.told


@pytest.mark.parametrize("name", MEMORY)
def test_its_right_twin_has_such_memory_to_itself(name: str, check: Checking) -> None:
    done = run(check, MEMORY[name][0], "right")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err


def test_a_witness_reverses_the_race_of_a_fork_and_shows_what_it_does(check: Checking) -> None:
    done = run(check, FORK, "wrong", "--witnesses", "1")
    (race,) = done.findings["races"]
    assert race["witness"]["verdict"] == "harmful"
    assert (
        "Cure: After train.py" in done.told
    )  # in the captured code: a line beside the replay would order nothing there
    assert "the host waits" not in done.told


def test_a_result_read_before_the_next_replay_is_no_finding(check: Checking) -> None:
    program = """
    graph, y = capture(lambda: model(x))
    last = None
    for number in range(5):
        x.fill_(number)
        graph.replay()
        last = y  # a second name for it
        loss = last.sum().item()
    print(loss)
"""
    done = run(check, program, "wrong")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err


def test_graphed_callables_in_a_training_are_clean(check: Checking) -> None:
    program = """
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)]
    first, second = (torch.nn.Sequential(*layers).cuda(), torch.nn.Linear(64, 64).cuda())
    sample = lambda: (torch.randn(8, 64, device="cuda"),)
    hidden = lambda: (torch.randn(8, 64, device="cuda", requires_grad=True),)
    first, second = torch.cuda.make_graphed_callables((first, second), (sample(), hidden()))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad(set_to_none=False)
        loss = second(first(torch.randn(8, 64, device="cuda"))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses)
"""
    done = run(check, program, "right")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err


def test_such_a_finding_is_known_from_then_on_and_has_a_rule_of_its_own(check: Checking) -> None:
    first = run(check, FREED, "wrong", "--write-baseline", "known.json")
    assert (first.status, first.findings["verdict"]) == (0, "graph-memory"), first.out + first.err
    again = run(check, FREED, "wrong", "--baseline", "known.json", "--format", "sarif", "--overwrite")
    assert again.status == 0, again.out + again.err
    assert "stream-race/graph-memory" in again.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dry",), "a CUDA graph in a dry run cannot be simulated"),
    ],
)
def test_what_cannot_follow_a_graph_says_so(options: tuple[str, ...], said: str, check: Checking) -> None:
    done = run(check, INPUT, "right", *options)
    assert said in done.out + done.err
    assert done.status not in (0, 1)
