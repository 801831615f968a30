"""What people see before they submit."""
