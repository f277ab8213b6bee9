"""What to run: models, data, sharding, cluster, timing, and the training program of each rank."""
