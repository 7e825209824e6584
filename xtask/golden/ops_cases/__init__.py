"""The op cases, one module per group."""
