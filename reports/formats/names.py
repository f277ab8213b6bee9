"""The formats by name, for the command line: known before anything that writes them is imported."""

NAMES = ("text", "json", "sarif", "junit", "github")
