"""What every room needs: errors, units, clocks, log lines, private files, executors."""
