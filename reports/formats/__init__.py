"""What was found by ``repro check``, for other tools: SARIF, JUnit, GitHub's annotations, JSON."""
