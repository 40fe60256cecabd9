"""The account of a run's privacy, which the options with a privacy loss share: one ledger has the releases of all of them."""
