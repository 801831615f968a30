"""What every wing needs: errors, units, quoting, files, and what can be trusted on a machine."""
