"""Lists the formats by name for the command line, without importing their writers."""

NAMES = ("text", "json", "sarif", "junit", "github")
