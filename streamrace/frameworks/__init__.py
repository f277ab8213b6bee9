"""What frameworks need beyond torch to run on the simulated GPU, a folder each. They stay as they were installed."""
