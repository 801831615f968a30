"""The rules for resolved jobs, their trainers and profiles, and what these rules see of a job."""
