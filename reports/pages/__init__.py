"""Pages that open anywhere: one for a run, a campaign, a study, an incident; their parts; the server."""
