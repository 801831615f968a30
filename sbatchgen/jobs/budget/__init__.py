"""What jobs may take: limits that a user sets, and what their jobs have taken."""
