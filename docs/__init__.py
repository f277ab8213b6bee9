"""The pages and what makes them: collect runs the studies, tables reads their files, hooks is for mkdocs."""
