"""Several ranks on this machine: their processes (:mod:`.processes`) and how they tell each other the time."""


class RankFailed(Exception):
    """A rank ended badly. Says which and how."""

    def __init__(self, rank: int, reason: str, status: int) -> None:
        self.rank, self.reason, self.status = rank, reason, status
        super().__init__(f"rank {rank} {reason}")
