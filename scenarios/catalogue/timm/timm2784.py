"""PrefetchLoader: a batch's memory is filled again while the model still reads it."""
# /// catalogue
# title = "timm: a prefetched batch is freed to the prefetching stream while the model reads it"
# mechanism = "Batches are copied and normalised on the loader's stream, which allocates them. The model's stream waits for them, but no record_stream says that it reads them: when the loop drops one, the next batch is written there."
# threads = ["https://github.com/huggingface/pytorch-image-models/pull/2784"]
# kind = "race"
# known = "1.0.29; earlier ones not tried; 1.0.30 is clean"
# affected = { packages = ["timm==1.0.29"] }
# fixed = { packages = ["timm==1.0.30"] }
# ranks = 1
# places = ["timm2784.py:<module>", "loader.py:__iter__"]
# harm = "harmful"
# ///

import torch
from timm.data.loader import PrefetchLoader
from torch.utils.data import DataLoader

torch.manual_seed(0)
images = torch.randint(0, 256, (32, 3, 64, 64), dtype=torch.uint8)
loader = DataLoader([(image, 0) for image in images], batch_size=4, pin_memory=True)
model = torch.nn.Conv2d(3, 8, 3).cuda()
total = torch.zeros((), device="cuda")
with torch.no_grad():
    for batch, _ in PrefetchLoader(loader, device=torch.device("cuda")):
        total += model(batch).square().mean()
print(total.item())
