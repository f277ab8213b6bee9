"""Pictures of these studies, as PNG files."""
