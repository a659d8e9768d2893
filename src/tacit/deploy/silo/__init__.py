"""The silo's own process: records, policy, noise and ledger behind a Unix socket; couriers are untrusted."""
