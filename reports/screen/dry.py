"""Prints a dry run: verdict, step time and its parts, memory, traffic, races."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from streamrace.reports.data.dry import GIB, DryOutput, memory_table, time_table
from streamrace.reports.data.findings import found
from streamrace.reports.data.schema import Judged
from streamrace.reports.screen.races import finding_text, unexercised_text
from streamrace.reports.text import clean, reports_on, typed
from streamrace.studies.dry_run import Extension, Rehearsed
from streamrace.studies.table import STYLES
from streamrace.trace import wording
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Collective, Frame, Launch, Stack


def panel(dry_run: Rehearsed, said: DryOutput) -> Panel:
    """Return the verdict on one dry run. ``said``: the result of :func:`output`, which may have to read the trace."""
    colour = STYLES[tone(dry_run)]
    body: list[RenderableType] = [Text(sentence(dry_run), f"bold {colour}")]
    if not dry_run.fits:
        body.append(Text(said.notes[0], "red"))  # the result of :func:`excess`
    if dry_run.extension:
        body.append(Text(extension(dry_run.extension)))
    body += [Text(speed(dry_run)), time_table(dry_run.step), memory_table(dry_run.memory)]
    body += [Text(text) for text in [*allocator(dry_run), traffic(dry_run)]]
    body.append(_ranks(dry_run))
    for one in found([Judged(**vars(race)) for race in dry_run.races]):
        body += [Text(""), finding_text(one, whole="dry.json")]
    if not dry_run.races:
        body += unexercised_text(dry_run.unexercised)
    return Panel(Group(*body), title=f"dry run: {verdict(dry_run)}", border_style=colour)


def show(console: Console, shown: Panel, folder: Path) -> None:
    """Print the verdict, and where the files of the dry run are."""
    console.print(shown)
    console.print(f"Files: {folder}/dry.json, timeline.json.gz (open it in ui.perfetto.dev), trace/", highlight=False)
    console.print(f"Page:  {typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)


def output(dry_run: Rehearsed) -> DryOutput:
    """Return the verdict and the notes below it, as the folder keeps them for its page."""
    notes = [] if dry_run.fits else [excess(dry_run)]
    if dry_run.extension:
        notes.append(extension(dry_run.extension))
    notes += [speed(dry_run), *allocator(dry_run), traffic(dry_run), *rank_lines(dry_run)]
    return DryOutput(verdict=verdict(dry_run), tone=tone(dry_run), sentence=sentence(dry_run), notes=notes)


def tone(dry_run: Rehearsed) -> str:
    """Return the tone: good, warn (a race that does not show) or bad."""
    if any(race.manifested for race in dry_run.races) or not dry_run.fits:
        return "bad"
    return "warn" if dry_run.races else "good"


def verdict(dry_run: Rehearsed) -> str:
    """Return the verdict in a word."""
    if dry_run.races:
        return "race, manifested" if any(race.manifested for race in dry_run.races) else "race, latent"
    return "clean" if dry_run.fits else "does not fit"


def sentence(dry_run: Rehearsed) -> str:
    """Return the verdict as a sentence for a person."""
    if any(race.manifested for race in dry_run.races):
        first = "A race, and this timing shows it: values may be wrong."
    elif dry_run.races:
        first = "A race that this timing does not show: another network or batch may."
    else:
        first = clean("all accesses on different streams are ordered", dry_run.unexercised)
    return first if dry_run.fits else f"{first} The job does not fit on the GPU."


def excess(dry_run: Rehearsed) -> str:
    """Return when the memory was first exceeded, and what to do. Two sentences."""
    memory = dry_run.memory
    if memory.excess is None:  # the tensors would fit
        return (
            f"The tensors take {memory.peak / GIB:.1f} of {dry_run.job.profile().capacity / GIB:.0f} GiB, but free "
            "memory lies in pieces that are too small for the next one. Try a smaller --micro-batch, or more GPUs."
        )
    moment = memory.excess.moment
    where = None if dry_run.extension else place(dry_run.trace, moment.record)
    at = f" at {wording.frame(where)}" if where else ""
    when = f"in {moment.phase}" + (f" of step {moment.step}, micro-batch {moment.micro_batch}" if moment.step else "")
    job = dry_run.job
    advice = []
    if not job.checkpointing and memory.kinds.get("activations", 0) > memory.peak / 3:
        advice.append("--checkpointing")
    if dry_run.micro_batch > 1:
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
        for number, event in enumerate(reader.read()):
            if isinstance(event, Stack):
                stacks[event.id] = event.frames
            elif number >= record and isinstance(event, (Launch, Collective)) and stacks.get(event.stack):
                return stacks[event.stack][0]
    finally:
        reader.close()
    return None


def speed(dry_run: Rehearsed) -> str:
    """Return how long a step takes, and what was rehearsed for that. One sentence."""
    job = dry_run.job
    return (
        f"{dry_run.step_s:.2f} s an optimizer step, {dry_run.tokens_per_second:,.0f} tokens/s on {job.ranks} GPUs, "
        f"{dry_run.tflops:.1f} TFLOPs per GPU; {dry_run.parameters / 1e9:.2f} billion parameters, "
        f"{dry_run.operations:,} operations rehearsed."
    )


def allocator(dry_run: Rehearsed) -> list[str]:
    """Return what torch's allocator takes of the GPU. One sentence; none for an extended run."""
    cache = dry_run.cache
    if cache is None:
        return []
    peak = dry_run.memory.peak / GIB
    text = f"torch reserves {cache.reserved / GIB:.2f} GiB of the GPU, and tensors take {peak:.2f} of it"
    if cache.retries:
        text += (
            f"; {wording.times(cache.retries)} it gave cached memory back, for which the host waits for the GPU, and "
            "asked for memory again" + (f", {wording.times(cache.shortages)} in vain" if cache.shortages else "")
        )
    return [f"{text}."]


def traffic(dry_run: Rehearsed) -> str:
    """Return the traffic of a step. One sentence."""
    sent = dry_run.traffic.only(step=dry_run.step.step)
    leaves = sent.crossing * dry_run.job.gpus
    return (
        f"Sent per GPU and step: {sent.within / GIB:.2f} GiB in collectives within the node, "
        f"{sent.between / GIB:.2f} GiB in collectives between nodes; {leaves / GIB:.2f} GiB leave each node."
    )


def extension(of: Extension) -> str:
    """Return which numbers of layers were run, and how the others follow from them. Two sentences."""
    recorded = ", ".join(map(str, of.recorded))
    again = "layer" if of.period == 1 else f"{of.period} layers"
    return (
        f"From dry runs with {recorded} of {of.layers} layers: the order of the deepest is what the others predict, "
        f"and it repeats with each {again}. '--exact' runs all."
    )


def rank_lines(dry_run: Rehearsed) -> list[str]:
    """Return what is known of the other ranks, a sentence each."""
    checked = dry_run.classes
    if checked is None:
        return [f"This is rank {dry_run.rank}; the other {dry_run.job.ranks - 1} ranks are assumed to do the same."]
    on = "" if checked.layers is None else f" (on {checked.layers} layers)"
    result = f"{len(checked.unequal)} differ" if checked.unequal else "all equal"
    lines = [
        f"{dry_run.job.ranks} ranks in {len(checked.classes)} classes; "
        f"{wording.count(checked.compared, 'class', 'classes')} checked by a second member{on}: {result}."
    ]
    for cls in checked.unequal:
        lines.append(f"The ranks that are {cls.ranks.what} differ among themselves. {cls.difference}.")
    differ = [cls for cls in checked.classes if cls.from_first]
    if not differ:
        return [*lines, "All classes do the same as rank 0."]
    for cls in differ:
        whose = f"Ranks that are {cls.ranks.what} ({len(cls.ranks.members)}, as rank {cls.ranks.members[0]})"
        lines.append(
            f"{whose} differ from rank 0. First: {cls.from_first}. '--rank {cls.ranks.members[0]}' runs as it."
        )
    first, slowest = checked.classes[0], checked.slowest
    if slowest.step_ns > first.step_ns:
        longer = 100 * (slowest.step_ns / first.step_ns - 1)
        lines.append(
            f"Rank {slowest.ranks.members[0]} takes {longer:.1f} % longer for such a step, and the others wait."
        )
    return lines


def _ranks(dry_run: Rehearsed) -> RenderableType:
    checked = dry_run.classes
    return Text("\n".join(rank_lines(dry_run)), "red" if checked and checked.unequal else "")
