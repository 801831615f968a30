"""The foundation of all wings: errors, units, quoting, safe files, and the checks of trust on a machine."""
