"""``python -m papers COMMAND``, from the checkout: runs the targets paper, paro, reviewers and network of the Makefile.

The commands run like those of ``streamrace``, with the same messages and exit statuses.
"""

from __future__ import annotations

from streamrace.repro import __main__ as line
from streamrace.repro.commands.table import Command, CommandLine

PAPERS = CommandLine(
    "python -m papers",
    "papers",
    "What papers and their readers report, side by side with what comes out here.",
    "papers.commands",
    {
        "paper": Command("paper", "deepspeed", "The papers' claims, side by side with what we get.", gpu=True),
        "paro": Command(
            "paro", "deepspeed,reports", "PaRO's strategies beside DDP, their formulas and the paper.", gpu=True
        ),
        "reviewers": Command(
            "reviewers",
            "deepspeed,reports",
            "What the papers' reviewers ask for: validation loss, scale, costs.",
            gpu=True,
        ),
        "network": Command("network", "reports", "Collectives as nccl-tests reported them, beside the model's."),
    },
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Raises ``SystemExit`` with the status of the error."""
    line.main(arguments, PAPERS)


if __name__ == "__main__":
    line.run(PAPERS)
