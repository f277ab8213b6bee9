"""``python -m mutants [LIST ...]``: puts each small error of the lists in, and says which of them no test notices.

Exit status: 0 where every mutant is noticed, or argued to be none; 1 where one survives, cannot be made, or is noticed
though it is argued to be none.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mutants.bench import Bench
from mutants.listed import Mutant, names, out_of_date, read


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lists", nargs="*", metavar="list", help=f"of {', '.join(names())} (default: all)")
    parser.add_argument("--only", default="", metavar="WORDS", help="those whose name has these words")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at once [2]")
    options = parser.parse_args()
    if unknown := [one for one in options.lists if one not in names()]:
        parser.error(f"there is no list '{unknown[0]}': there are {', '.join(names())}")
    mutants = [one for listed in options.lists or names() for one in read(listed) if options.only in one.name]
    if not mutants:
        parser.error(f"no mutant's name has '{options.only}'")
    results = tried(mutants, max(1, options.jobs))
    show(mutants, results)
    Path("runs").mkdir(exist_ok=True)
    said = [{"list": one.listed, "name": one.name, "file": one.file, "outcome": results[one]} for one in mutants]
    Path("runs/mutants.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(any(not as_wanted(one, results[one]) for one in mutants))


def as_wanted(mutant: Mutant, outcome: str) -> bool:
    return outcome == ("survived" if mutant.equivalent else "noticed")


def tried(mutants: list[Mutant], jobs: int) -> dict[Mutant, str]:
    """Return the outcome of each mutant."""
    benches: SimpleQueue[Bench] = SimpleQueue()

    def trial(mutant: Mutant) -> str:
        if why := out_of_date(mutant):
            return f"cannot be made: {why}"
        bench = benches.get()
        try:
            if not bench.passes(mutant):
                return "its tests fail without it"
            return bench.trial(mutant)
        finally:
            benches.put(bench)

    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("mutants", total=len(mutants))
        for number in range(jobs):
            benches.put(Bench(Path(folder) / str(number)))
        results: dict[Mutant, str] = {}
        with ThreadPoolExecutor(jobs) as pool:
            for mutant, outcome in zip(mutants, pool.map(trial, mutants), strict=True):
                results[mutant] = outcome
                progress.advance(task)
                if not as_wanted(mutant, outcome):
                    progress.console.print(f"{mutant.listed}: {mutant.name}: {outcome}", markup=False)
    return results


def show(mutants: list[Mutant], results: dict[Mutant, str]) -> None:
    """Print the counts of each list, and the mutants whose outcome is not the wanted one."""
    table = Table("list", "mutants", "noticed", "argued to be none")
    for listed in dict.fromkeys(one.listed for one in mutants):
        mine = [one for one in mutants if one.listed == listed]
        noticed = sum(results[one] == "noticed" for one in mine)
        table.add_row(listed, str(len(mine)), str(noticed), str(sum(bool(one.equivalent) for one in mine)))
    console = Console()
    console.print(table)
    for mutant in mutants:
        if not as_wanted(mutant, results[mutant]):
            console.print(f"{mutant.listed}: {mutant.name} ({mutant.file}): {results[mutant]}", markup=False)


if __name__ == "__main__":
    main()
