"""What a run, a campaign or a study leaves in its folder: written, and read again with nothing trusted."""
