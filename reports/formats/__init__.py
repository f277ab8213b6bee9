"""Writes the findings of ``streamrace check`` for other tools: SARIF, JUnit, GitHub's annotations, JSON."""
