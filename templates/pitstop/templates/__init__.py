"""Templates shipped with pitstop: runbooks and reports, as data with a loader."""
