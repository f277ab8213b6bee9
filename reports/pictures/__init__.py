"""Pictures of studies, as PNG files."""
