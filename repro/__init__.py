"""Executes a scenario: stock DeepSpeed on a simulated asynchronous accelerator."""
