"""What was found by ``streamrace check``, for other tools: SARIF, JUnit, GitHub's annotations, JSON."""
