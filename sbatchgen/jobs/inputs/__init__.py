"""What people write: profiles and jobs, and where their files are found."""
