"""TensorDict.to() of the host: it does not wait, and the host reads at once."""
# /// catalogue
# title = "tensordict: to('cpu') is not waited for"
# mechanism = "to('cpu') copies every tensor with non_blocking=True, and returns. 0.4.0 synchronises where the caller has not asked for non_blocking itself."
# threads = ["https://github.com/pytorch/tensordict/issues/734"]
# kind = "race"
# known = "0.3.2; 0.4.0 is clean"
# affected = { packages = ["torch==2.5.1", "tensordict==0.3.2"] }
# fixed = { packages = ["torch==2.5.1", "tensordict==0.4.0"] }
# ranks = 1
# places = ["td734.py:<module>", "td734.py:<module>"]
# harm = "harmful"
# ///

import torch
from tensordict import TensorDict

torch.manual_seed(0)
weights = torch.randn(512, 512).cuda()
made = TensorDict({"activations": weights @ weights, "gradients": weights @ weights.t()}, [])
there = made.to("cpu")
print([there[name].double().sum().item() for name in ("activations", "gradients")])
