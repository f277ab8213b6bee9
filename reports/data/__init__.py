"""Writes the files of a run, campaign or study folder, and reads them again with nothing trusted."""
