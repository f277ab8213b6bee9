"""Prints a dry run: verdict, step time and its parts, memory, traffic, races."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from streamrace.reports.data.dry import GIB, memory_table, time_table
from streamrace.reports.screen.races import race_text, unexercised_text
from streamrace.reports.text import clean, reports_on, typed
from streamrace.studies.dry_run import Extension, Rehearsed
from streamrace.studies.table import STYLES
from streamrace.trace import wording
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Collective, Frame, Launch, Stack


def panel(found: Rehearsed, told: Mapping[str, Any]) -> Panel:
    """Return the verdict on one dry run. ``told``: the result of :func:`said`, which may have to read the trace."""
    colour = STYLES[tone(found)]
    body: list[RenderableType] = [Text(sentence(found), f"bold {colour}")]
    if not found.fits:
        body.append(Text(told["notes"][0], "red"))  # the result of :func:`excess`
    if found.extension:
        body.append(Text(extension(found.extension)))
    body += [Text(speed(found)), time_table(found.step), memory_table(found.memory)]
    body += [Text(traffic(found)), _ranks(found)]
    for number, race in enumerate(found.races, 1):
        body += [Text(""), race_text(f"Race {number}: {race.kind}", race, whole="dry.json")]
    if not found.races:
        body += unexercised_text(found.unexercised)
    return Panel(Group(*body), title=f"dry run: {verdict(found)}", border_style=colour)


def show(console: Console, shown: Panel, folder: Path) -> None:
    """Print the verdict, and where the files of the dry run are."""
    console.print(shown)
    console.print(f"Files: {folder}/dry.json, timeline.json.gz (open it in ui.perfetto.dev), trace/", highlight=False)
    console.print(f"Page:  {typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)


def said(found: Rehearsed) -> dict[str, Any]:
    """Return the verdict and the notes below it, as the folder keeps them for its page."""
    notes = [] if found.fits else [excess(found)]
    if found.extension:
        notes.append(extension(found.extension))
    notes += [speed(found), traffic(found), *ranks_said(found)]
    return {"verdict": verdict(found), "tone": tone(found), "sentence": sentence(found), "notes": notes}


def tone(found: Rehearsed) -> str:
    """Return the tone: good, warn (a race that does not show) or bad."""
    if any(race.manifested for race in found.races) or not found.fits:
        return "bad"
    return "warn" if found.races else "good"


def verdict(found: Rehearsed) -> str:
    """Return the verdict in a word."""
    if found.races:
        return "race, manifested" if any(race.manifested for race in found.races) else "race, latent"
    return "clean" if found.fits else "does not fit"


def sentence(found: Rehearsed) -> str:
    """Return the verdict as a sentence for a person."""
    if any(race.manifested for race in found.races):
        first = "A race, and this timing shows it: values may be wrong."
    elif found.races:
        first = "A race that this timing does not show: another network or batch may."
    else:
        first = clean("nothing on two streams is unordered", found.unexercised)
    return first if found.fits else f"{first} The job does not fit on the GPU."


def excess(found: Rehearsed) -> str:
    """Return when the memory was first exceeded, and what to do. Two sentences."""
    memory = found.memory
    assert memory.excess is not None
    moment = memory.excess.moment
    where = None if found.extension else place(found.trace, moment.record)
    at = f" at {wording.frame(where)}" if where else ""
    when = f"in {moment.phase}" + (f" of step {moment.step}, micro-batch {moment.micro_batch}" if moment.step else "")
    job = found.job
    advice = []
    if not job.checkpointing and memory.kinds.get("activations", 0) > memory.peak / 3:
        advice.append("--checkpointing")
    if found.micro_batch > 1:
        advice.append("a smaller --micro-batch")
    if job.hpz > 1:
        advice.append("a larger --hpz group, or none")
    advice.append("more GPUs")
    return (
        f"A GPU of '{job.hardware}' has {memory.excess.capacity / GIB:.0f} GiB; they are full {when}{at}, and the peak "
        f"is {memory.peak / GIB:.1f} GiB. Try {', '.join(advice)}."
    )


def place(trace: Path, record: int) -> Frame | None:
    """Return the line of the program that issues the first work at or after a record of the trace."""
    stacks: dict[int, tuple[Frame, ...]] = {}
    reader = TraceReader(trace)
    try:
        for number, one in enumerate(reader.read()):
            if isinstance(one, Stack):
                stacks[one.id] = one.frames
            elif number >= record and isinstance(one, (Launch, Collective)) and stacks.get(one.stack):
                return stacks[one.stack][0]
    finally:
        reader.close()
    return None


def speed(found: Rehearsed) -> str:
    """Return how long a step takes, and what was rehearsed for that. One sentence."""
    job = found.job
    return (
        f"{found.step_s:.2f} s an optimizer step, {found.tokens_per_second:,.0f} tokens/s on {job.ranks} GPUs, "
        f"{found.tflops:.1f} TFLOPs per GPU; {found.parameters / 1e9:.2f} billion parameters, "
        f"{found.operations:,} operations rehearsed."
    )


def traffic(found: Rehearsed) -> str:
    """Return the traffic of a step. One sentence."""
    sent = found.traffic.only(step=found.step.step)
    leaves = sent.crossing * found.job.gpus
    return (
        f"Sent per GPU and step: {sent.within / GIB:.2f} GiB in collectives within the node, "
        f"{sent.between / GIB:.2f} GiB in collectives between nodes; {leaves / GIB:.2f} GiB leave each node."
    )


def extension(of: Extension) -> str:
    """Return which numbers of layers were run, and how the others follow from them. Two sentences."""
    recorded = ", ".join(map(str, of.recorded))
    again = "layer" if of.period == 1 else f"{of.period} layers"
    return (
        f"From dry runs with {recorded} of {of.layers} layers: the order of the deepest is what the others foretell, "
        f"and it repeats with each {again}. '--exact' runs all."
    )


def ranks_said(found: Rehearsed) -> list[str]:
    """Return what is known of the other ranks, a sentence each."""
    checked = found.classes
    if checked is None:
        return [f"This is rank {found.rank}; that the other {found.job.ranks - 1} ranks do the same is assumed."]
    on = "" if checked.layers is None else f" (on {checked.layers} layers)"
    said = [
        f"{found.job.ranks} ranks in {len(checked.classes)} classes; {checked.compared} second members compared with "
        f"their representatives{on}: {'equal' if not checked.unequal else f'{len(checked.unequal)} differ'}."
    ]
    said += [f"Ranks that are {one.ranks.what} are no class. {one.difference}." for one in checked.unequal]
    differ = [one for one in checked.classes if one.from_first]
    if not differ:
        return [*said, "All classes do what rank 0 does."]
    for one in differ:
        whose = f"Ranks that are {one.ranks.what} ({len(one.ranks.members)}, as rank {one.ranks.members[0]})"
        said.append(f"{whose} differ from rank 0. First: {one.from_first}. '--rank {one.ranks.members[0]}' runs as it.")
    first, slowest = checked.classes[0], checked.slowest
    if slowest.step_ns > first.step_ns:
        longer = 100 * (slowest.step_ns / first.step_ns - 1)
        said.append(
            f"Rank {slowest.ranks.members[0]} takes {longer:.1f} % longer for such a step, and the others wait."
        )
    return said


def _ranks(found: Rehearsed) -> RenderableType:
    checked = found.classes
    return Text("\n".join(ranks_said(found)), "red" if checked and checked.unequal else "")
