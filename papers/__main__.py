"""``python -m papers COMMAND``, from the checkout: runs the targets of the Makefile that have their names.

The commands run like those of ``streamrace``, with the same messages and exit statuses.
"""

from __future__ import annotations

from streamrace.repro import __main__ as line
from streamrace.repro.commands.table import Command, CommandLine

PAPERS = CommandLine(
    "python -m papers",
    "papers",
    "Compare figures of papers and their readers with ours.",
    "papers.commands",
    {
        "paper": Command("paper", "deepspeed", "Compare the papers' claims with our results.", gpu=True),
        "paro": Command(
            "paro", "deepspeed,reports", "Compare PaRO's strategies with DDP, their formulas and the paper.", gpu=True
        ),
        "reviewers": Command(
            "reviewers",
            "deepspeed,reports",
            "Answer the papers' reviewers: validation loss, scale, costs.",
            gpu=True,
        ),
        "throughput": Command(
            "throughput", "deepspeed,reports", "Compare published step times of A100 and H100 with dry runs.", gpu=True
        ),
        "network": Command("network", "reports", "Compare the model of collectives with reports of nccl-tests."),
    },
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Raises ``SystemExit`` with the status of the error."""
    line.main(arguments, PAPERS)


if __name__ == "__main__":
    line.run(PAPERS)
