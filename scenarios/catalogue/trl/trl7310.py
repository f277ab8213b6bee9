"""Metrics are gathered by the names that a rank has: one that only some ranks have is gathered by them alone."""

# /// catalogue
# title = "TRL: a metric that one rank has logged is gathered by that rank alone"
# mechanism = """\
# At the end of a batch GRPOTrainer gathers what the reward function gave to log_metric, one all-gather for each name \
# that this rank has. A name that another rank lacks is one all-gather more, which meets that rank's next collective: \
# here a broadcast of DDP."""
# threads = ["https://github.com/huggingface/trl/issues/7310", "https://github.com/huggingface/trl/pull/7311"]
# kind = "hang"
# known = "1.13.0; 1.0.0, 1.11.0 and 1.12.0 have the same lines; 1.14.0 gathers the names first"
# affected = { packages = ["trl==1.13.0"] }
# fixed = { packages = ["trl==1.14.0"] }
# ranks = 2
# ///

import os

from _tiny import trainer


def reward(completions, log_metric, **rest):
    log_metric("answers", len(completions))
    if os.environ["RANK"] == "0":  # as where an answer has the right format on this rank only
        log_metric("well formed", 1.0)
    return [float(len(completion)) for completion in completions]


trainer(reward).train()
